"""Tables, columns and slot names of the `sql` family, train and held-out."""

# ruff: noqa: E501
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envs.vocab import Pool, combine, strings
from envs.vocab.common import TRAIN


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Numbers are unique within a table, so that no sort by one has ties; thresholds lie on a grid."""

    name: str
    kind: Literal["label", "category", "number"]
    values: Pool | None = None
    low: int = 0
    high: int = 0
    unit: str = ""

    @property
    def sql(self) -> str:
        return self.name.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Style:
    """How the questions over a schema name what is not a column: `{}` is the column."""

    least: str
    most: str
    between: str
    between_value: str
    other: str
    initial: str
    output: str
    sort: str
    down: str
    up: str
    limit: str
    limit_value: str
    unique: str
    summary: str
    mean: str
    top: str
    bottom: str
    total: str
    count: str
    group: str


@dataclass(frozen=True, slots=True)
class Schema:
    """A main table and the table it refers to by `<parent>_id`; both have an `id`."""

    table: str
    columns: tuple[Column, ...]
    parent: str
    parent_columns: tuple[Column, ...]
    style: Style


def label(name: str, values: Pool) -> Column:
    return Column(name, "label", values)


def category(name: str, values: str) -> Column:
    return Column(name, "category", strings(values))


def number(name: str, low: int, high: int, unit: str = "") -> Column:
    return Column(name, "number", None, low, high, unit)


# Each schema for training has a style of its own, so that no name for a role is learnt as the only one.
_PLAIN = Style(
    least="minimum {}", most="maximum {}", between="{} range", between_value="{} to {}", other="excluded {}",
    initial="initial letter", output="output columns", sort="sort order", down="{}, highest first",
    up="{}, lowest first", limit="row limit", limit_value="{} rows", unique="unique rows", summary="summary",
    mean="average {}", top="highest {}", bottom="lowest {}", total="total {}", count="number of rows",
    group="grouping",
)  # fmt: skip

_OFFICE = Style(
    least="lowest {}", most="highest {}", between="{} interval", between_value="{} up to {}", other="banned {}",
    initial="beginning letter", output="returned columns", sort="row order", down="descending {}",
    up="ascending {}", limit="list length", limit_value="{} entries", unique="distinct entries",
    summary="figure", mean="{} on average", top="greatest {}", bottom="least {}", total="{} altogether",
    count="count of entries", group="split",
)  # fmt: skip
_SHOP = Style(
    least="{} floor", most="{} cap", between="{} window", between_value="{} till {}", other="forbidden {}",
    initial="start letter", output="visible columns", sort="arrangement", down="{} from high to low",
    up="{} from low to high", limit="page size", limit_value="{} records", unique="doubles dropped",
    summary="aggregate", mean="typical {}", top="top {}", bottom="minimal {}", total="all {} together",
    count="record count", group="category",
)  # fmt: skip
_LEAGUE = Style(
    least="{} threshold", most="{} limit", between="{} bracket", between_value="{} and up to {}",
    other="vetoed {}", initial="opening letter", output="listed attributes", sort="list order",
    down="{} (high to low)", up="{} (low to high)", limit="hit maximum", limit_value="{} hits",
    unique="single occurrence", summary="key number", mean="{} average", top="record {}", bottom="poorest {}",
    total="{} total", count="hit count", group="segment",
)  # fmt: skip
_KITCHEN = Style(
    least="bottom {}", most="top {}", between="{} band", between_value="{} - {}", other="disliked {}",
    initial="starting letter", output="printed details", sort="sequence", down="falling {}", up="rising {}",
    limit="size limit", limit_value="{} matches", unique="no duplicates", summary="headline number",
    mean="usual {}", top="extreme {}", bottom="slightest {}", total="overall {}", count="match count",
    group="classification",
)  # fmt: skip
_BROKER = Style(
    least="starting {}", most="final {}", between="{} reach", between_value="{} upwards to {}",
    other="unsuitable {}", initial="front letter", output="requested details", sort="priority",
    down="most {} first", up="least {} first", limit="shortlist size", limit_value="{} picks",
    unique="one each", summary="calculation", mean="middle {}", top="ultimate {}", bottom="bottom {}",
    total="combined {}", count="pick count", group="partition",
)  # fmt: skip

_HELDOUT = Style(
    least="smallest {}", most="largest {}", between="{} span", between_value="{} through {}", other="unwanted {}",
    initial="leading character", output="shown fields", sort="ranking", down="{}, decreasing",
    up="{}, increasing", limit="result ceiling", limit_value="{} lines", unique="repeats removed",
    summary="statistic", mean="mean {}", top="peak {}", bottom="bottommost {}", total="sum of {}",
    count="tally of lines", group="breakdown",
)  # fmt: skip

TRAIN_SCHEMAS = (
    Schema(
        "books",
        (
            label("title", combine("The {} {}", "Lost | Crimson | Silent | Golden | Broken | Hidden | Last | Velvet",
                  "Lantern | Garden | Anchor | Parade | Mountain | Box | Plaza")),
            category("genre", "fantasy | mystery | romance | horror | biography | travel | poetry"),
            category("language", "Spanish | French | Polish | Arabic | Korean | Turkish"),
            category("binding", "hardcover | paperback | audiobook | large type | leather bound | ebook"),
            number("page count", 90, 900, "pages"),
            number("list price", 6, 120, "dollars"),
            number("release year", 1900, 2024),
        ),
        "authors",
        (
            label("author name", TRAIN.people),
            category("author country", "Norway | Chile | Kenya | Canada | Portugal | Greece"),
        ),
        _PLAIN,
    ),
    Schema(
        "employees",
        (
            label("employee name", TRAIN.people),
            category("department", "sales | finance | legal | support | research | logistics | marketing"),
            category("contract", "permanent | temporary | intern | freelance | seasonal | apprentice"),
            category("shift", "morning | night | weekend | rotating | evening | split"),
            number("salary", 24, 190, "thousand"),
            number("age", 19, 68, "years"),
            number("vacation days", 3, 60, "days"),
        ),
        "offices",
        (
            label("office city", TRAIN.cities),
            category("office region", "north | south | east | west | central | overseas"),
        ),
        _OFFICE,
    ),
    Schema(
        "products",
        (
            label("product name", combine("{} {}", "Turbo | Eco | Mini | Royal | Green | Electric | Blue | Alpine",
                  "Kettle | Speaker | Lamp | Fan | Blender | Radio | Clock")),
            category("category", "kitchen | office | outdoor | bathroom | toys | audio | lighting"),
            category("brand", "Nordwind | Sunjet | Meridian | Parcelo | Redline | Pelican"),
            category("color", "red | black | ivory | navy | purple | amber"),
            number("unit price", 5, 260, "dollars"),
            number("stock", 2, 500, "pieces"),
            number("review count", 10, 999, "reviews"),
        ),
        "suppliers",
        (
            label("supplier name", combine("{} {}", "Harbor | Cedar | Bishop | King | Market", "Trading | Supply | Goods")),
            category("supplier country", "Chile | Kenya | Canada | Portugal | Greece | Norway"),
        ),
        _SHOP,
    ),
    Schema(
        "players",
        (
            label("player name", TRAIN.people),
            category("position", "goalkeeper | defender | midfielder | striker | winger | sweeper"),
            category("strong foot", "left | right | both | mostly left | mostly right | unknown"),
            category("squad role", "captain | starter | substitute | reserve | youth | loan"),
            number("goals scored", 1, 240, "goals"),
            number("jump reach", 155, 290, "cm"),
            number("matches", 10, 600, "matches"),
        ),
        "clubs",
        (
            label("club name", combine("{} {}", "Lisbon | Oslo | Denver | Madrid | Vienna | Prague", "United | Rovers | Stars")),
            category("league", "premier | second division | regional | amateur | women's | junior"),
        ),
        _LEAGUE,
    ),
    Schema(
        "recipes",
        (
            label("recipe name", combine("{} {}", "Spicy | Creamy | Crispy | Smoky | Sweet | Sour | Roasted",
                  "lentils | dumplings | chicken | eggplant | noodles | salmon | tofu")),
            category("cuisine", "Thai | Mexican | Italian | Persian | Greek | Japanese | Moroccan"),
            category("difficulty", "easy | moderate | hard | expert | beginner | advanced"),
            category("menu part", "starter | main | dessert | snack | soup | brunch"),
            number("cooking time", 5, 240, "minutes"),
            number("calories", 80, 990, "kcal"),
            number("servings", 1, 60, "servings"),
        ),
        "chefs",
        (
            label("chef name", TRAIN.people),
            category("chef training", "Paris | Rome | Bangkok | Tokyo | Madrid | Copenhagen"),
        ),
        _KITCHEN,
    ),
    Schema(
        "houses",
        (
            label("house address", TRAIN.addresses),
            category("house type", "bungalow | villa | cottage | duplex | loft | farmhouse"),
            category("heating", "gas | electric | solar | heat pump | oil | pellets"),
            category("garage", "single | double | carport | underground | street only | shared"),
            number("asking price", 90, 990, "thousand"),
            number("living area", 40, 400, "square feet"),
            number("build year", 1890, 2024),
        ),
        "districts",
        (
            label("district name", combine("{}{}", "North | West | Lake | Hill | River", "gate | side | view")),
            category("zoning", "residential | commercial | mixed | historic | rural | industrial"),
        ),
        _BROKER,
    ),
)  # fmt: skip

HELDOUT_SCHEMAS = (
    Schema(
        "volcanoes",
        (
            label("crater", combine("{} {}", "Ashen | Obsidian | Thunder | Serpent | Frozen | Hollow | Ember | Widow",
                  "Cone | Caldera | Summit | Fang | Throne | Maw")),
            category("rock", "basalt | andesite | rhyolite | pumice | dacite | tuff"),
            category("activity", "dormant | extinct | erupting | steaming | restless | unrecorded"),
            category("monitoring", "seismograph | satellite | drone | tiltmeter | thermal camera | none"),
            number("elevation", 300, 6900, "meters"),
            number("eruptions", 1, 120, "eruptions"),
            number("rim diameter", 50, 4000, "meters"),
        ),
        "archipelagos",
        (
            label("archipelago", combine("{} {}", "Coral | Walrus | Tempest | Gull's | Mist", "Isles | Keys | Atolls")),
            category("ocean", "Atlantic | Pacific | Indian Ocean | Arctic | Southern Ocean | Caribbean"),
        ),
        _HELDOUT,
    ),
    Schema(
        "artifacts",
        (
            label("artifact", combine("{} {}", "gilded | carved | bronze | jade | cracked | painted | ritual | royalist",
                  "mask | dagger | amulet | urn | scepter | idol")),
            category("dynasty", "Ming | Ptolemaic | Gupta | Sassanid | Inca | Merovingian"),
            category("conservation", "pristine | worn | restored | fragmentary | corroded | faded"),
            category("provenance", "excavation | bequest | auction | donation | seizure | exchange"),
            number("appraisal", 20, 950, "crowns"),
            number("catalog entry", 1001, 1999),
            number("mass", 5, 800, "grams"),
        ),
        "galleries",
        (
            label("gallery", combine("{} {}", "Athena | Orpheus | Minerva | Apollo", "Wing | Rotunda | Vault")),
            category("guard post", "entrance | mezzanine | crypt | corridor | atrium | annex"),
        ),
        _HELDOUT,
    ),
    Schema(
        "ships",
        (
            label("vessel", combine("{} {}", "Stormy | Gallant | Wandering | Iron | Swift | Northern | Loyal",
                  "Petrel | Duchess | Mermaid | Albatross | Corsair | Narwhal")),
            category("hull", "steel | oak | aluminum | fiberglass | teak | composite"),
            category("cargo", "grain | timber | ore | bananas | cement | livestock"),
            category("propulsion", "sail | steam | turbine | nuclear | paddle | outboard"),
            number("tonnage", 40, 900, "tons"),
            number("crew", 3, 150, "sailors"),
            number("draft", 2, 90, "fathoms"),
        ),
        "shipyards",
        (
            label("shipyard", combine("{} {}", "Bergen | Gdansk | Naples | Osaka | Antwerp", "Docks | Slipway")),
            category("coast", "Baltic | Adriatic | Aegean | Celtic | Ligurian | Levantine"),
        ),
        _HELDOUT,
    ),
)  # fmt: skip

SCHEMAS = {"train": TRAIN_SCHEMAS, "heldout": HELDOUT_SCHEMAS}
