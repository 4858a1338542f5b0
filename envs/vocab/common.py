"""Pools that several families use, one set a split: people, places, streets, dates, times, codes."""

from __future__ import annotations

from dataclasses import dataclass

from envs.vocab import Pool, combine, strings, union


@dataclass(frozen=True, slots=True)
class Common:
    first_names: Pool
    people: Pool
    cities: Pool
    addresses: Pool
    dates: Pool
    times: Pool
    codes: Pool
    phones: Pool


def _common(
    first: str, family: str, cities: str, streets: str, kinds: str, months: str, weekdays: str, letters: str,
    date_templates: tuple[str, ...], time_template: str, code_template: str, phone_template: str,
) -> Common:  # fmt: skip
    days = [str(day) for day in range(1, 29)]
    dates = [combine(template, months, days) for template in date_templates]
    return Common(
        first_names=strings(first),
        people=combine("{} {}", first, family),
        cities=strings(cities),
        addresses=combine("{} {} {}", [str(3 * n + 4) for n in range(30)], streets, kinds),
        dates=union(strings(weekdays), *dates),
        times=combine(time_template, [str(hour) for hour in range(1, 12)], "00 | 15 | 30 | 45"),
        codes=combine(code_template, letters, [str(37 * n % 900 + 100) for n in range(40)]),
        phones=combine(
            phone_template, [str(n) for n in range(201, 215)], [str(n) for n in range(1007, 9000, 333)]
        ),
    )


TRAIN = _common(
    first="Anna | Marcus | Priya | Diego | Yuki | Omar | Greta | Liam | Fatima | Noah | Ingrid | Pablo | Mei | "
    "Samuel | Aisha | Viktor | Clara | Hugo | Nadia | Theo | Rosa | Felix | Leila | Oscar | Maya",
    family="Keller | Okafor | Lindgren | Moreno | Tanaka | Haddad | Novak | Brennan | Silva | Fischer | Rahman | "
    "Dubois | Costa | Jensen | Kowalski | Mehta",
    cities="Brooklyn | Lisbon | Oslo | Denver | Kyoto | Madrid | Toronto | Nairobi | Vienna | Seattle | Prague | "
    "Dublin | Chicago | Mumbai | Helsinki | Boston | Lima | Geneva | Austin | Cairo | Seoul | Athens | Portland | "
    "Warsaw | Hamburg",
    streets="Maple | Harbor | Elm | Chestnut | Mill | Station | Cedar | King | Bishop | Willow | Market | Church",
    kinds="Street | Avenue | Lane",
    months="January | February | March | April | May | June | July | August",
    weekdays="Monday | Tuesday | Thursday | Friday | Sunday",
    letters="AX | BR | CT | DK | FM | GL | HN | JV | KP | LW",
    date_templates=("{} {}", "{1} {0}"),
    time_template="{}:{} pm",
    code_template="{}-{}",
    phone_template="555-{}-{}",
)

HELDOUT = _common(
    first="Benedikt | Chiara | Tomasz | Zainab | Rupert | Saskia | Kwame | Elodie | Hiroshi | Beatriz | Conor | "
    "Svetlana | Idris | Paloma | Gunnar | Imani",
    family="Abernathy | Castellano | Ferreira | Grimaldi | Hollis | Ivanova | Nakamura | Petrov | Quigley | "
    "Vandermeer | Whitlock | Zhang",
    cities="Antwerp | Bergen | Calgary | Dakar | Edinburgh | Florence | Gdansk | Hanoi | Izmir | Jaipur | Kigali | "
    "Leipzig | Memphis | Naples | Osaka | Quito | Riga | Tucson",
    streets="Alder | Canal | Foundry | Hawthorn | Juniper | Orchard | Quarry | Sycamore | Tanner | Vine",
    kinds="Road | Terrace | Boulevard",
    months="September | October | November | December",
    weekdays="Wednesday | Saturday",
    letters="ZQ | YU | WE | VO | TI | SA | RY | QO | PU | NE",
    date_templates=("the {1}th of {0}",),
    time_template="{}:{} am",
    code_template="{1}/{0}",
    phone_template="+44 {1} {0}",
)
