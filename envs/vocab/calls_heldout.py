"""Functions and slots of the `calls` family, held-out split: no content word is shared with the train split."""

# ruff: noqa: E501
from __future__ import annotations

from envs.vocab import BOOLEAN, Function, combine, decimals, integers, lists, slot, strings
from envs.vocab.common import HELDOUT as C

_EUROS = decimals([4 * n + 3 for n in range(4, 70)], "{} euros")
_PLAIN = decimals([n + 0.75 for n in range(2, 50)])

FUNCTIONS = (
    Function(
        "hire_handyman", "hire a handyman",
        (
            slot("trade", strings("plumber | electrician | carpenter | painter | locksmith | roofer | tiler"),
                 "get me a {}", "the trade is {}"),
            slot("fault", strings("dripping tap | cracked tile | dead socket | jammed hinge | leaky gutter | "
                 "loose banister"), "repair the {}", "the fault is a {}"),
            slot("worksite", C.addresses, "come to {}", "the job is at {}"),
            slot("hourly wage", _EUROS, "I offer {} an hour", "the wage is {}"),
            slot("visiting slot", C.times, "show up at {}", "ring the bell at {}"),
            slot("own ladder", BOOLEAN, "{} to own ladder", "has own ladder: {}"),
            slot("materials", lists("plywood | grout | sealant | copper pipe | screws | varnish"), "use {} for it",
                 "the materials are {}"),
            slot("warranty", integers(range(6, 60, 3), "{} weeks"), "guarantee it for {}", "the warranty runs {}"),
            slot("tarpaulin", BOOLEAN, "{} to a tarpaulin", "tarpaulin laid: {}"),
            slot("invoice label", C.codes, "the invoice is labelled {}", "bill it as {}"),
        ),
    ),
    Function(
        "enroll_course", "enroll in a course",
        (
            slot("subject", strings("linear algebra | pottery | marine biology | astronomy | creative writing | "
                 "Latin | microeconomics | screen printing"), "I study {}", "sign me up for {}"),
            slot("tutor", C.people, "learn from {}", "the tutor is {}"),
            slot("semester", strings("spring | autumn | winter | midsummer | harvest term | leap term"), "enroll me for the {} semester",
                 "take it in {}"),
            slot("campus", C.cities, "attend in {}", "the campus lies in {}"),
            slot("credits", integers(range(3, 31), "{} credits"), "earn {}", "it counts {}"),
            slot("scholarship", BOOLEAN, "{} to a scholarship", "scholarship requested: {}"),
            slot("exam format", strings("oral exam | essay | timed quiz | group portfolio | lab demonstration | poster defense"),
                 "finish with a {}", "the exam format is {}"),
            slot("weekly hours", integers(range(3, 41), "{} hours"), "I can spare {}", "plan {} a week"),
            slot("textbooks", lists("atlas | workbook | lexicon | anthology | primer"), "I need the {}",
                 "the textbooks are {}"),
            slot("closing day", C.dates, "enroll before {}", "registration ends on {}"),
        ),
    ),
    Function(
        "board_pet", "board a pet",
        (
            slot("animal", strings("beagle | hamster | parrot | tabby cat | rabbit | tortoise | ferret | poodle"),
                 "look after my {}", "the animal is a {}"),
            slot("kennel", combine("{} {}", "Jolly | Furry | Sunny | Whisker", "Paws | Meadow | Burrow | Den"),
                 "board it at {}", "the kennel is {}"),
            slot("feed", strings("dry kibble | raw carrots | tinned tuna | sunflower seeds | hay | mealworms | lettuce"), "feed it {}",
                 "it eats {}"),
            slot("walks", integers(range(2, 9), "{} walks"), "take {} daily", "it gets {}"),
            slot("vaccinated", BOOLEAN, "{} to vaccinated", "already vaccinated: {}"),
            slot("vet", C.people, "in an emergency ask {}", "the vet is {}"),
            slot("owner contact", C.phones, "text me on {}", "the owner contact is {}"),
            slot("dropoff day", C.dates, "I bring it on {}", "it comes on {}"),
            slot("grooming", strings("shampoo | nail trim | brushing | flea comb | haircut | ear cleaning"),
                 "groom it with a {}", "the grooming is a {}"),
            slot("collar tag", C.codes, "the collar says {}", "it wears the tag {}"),
        ),
    ),
    Function(
        "grow_vegetables", "grow vegetables",
        (
            slot("crop", strings("pumpkins | radishes | kale | zucchini | strawberries | beetroot | leeks"),
                 "grow {}", "plant {} there"),
            slot("plot width", decimals([n / 2 for n in range(3, 40)], "{} meters"), "dig {} wide", "it is {} wide"),
            slot("fertilizer", strings("compost | worm castings | seaweed extract | horse manure | wood ash | fermented nettle"),
                 "fertilize with {}", "mix in {}"),
            slot("watering rhythm", strings("every dawn | twice weekly | every dusk | only when dry | hourly | three times weekly"), "water it {}",
                 "the watering rhythm is {}"),
            slot("fence", BOOLEAN, "{} to a fence", "fence around it: {}"),
            slot("companions", lists("marigolds | thyme | nasturtiums | chives | borage"), "plant {} beside it",
                 "the companions are {}"),
            slot("sowing day", C.dates, "sow on {}", "the seeds go in on {}"),
            slot("soil", strings("sandy loam | heavy clay | chalk | peat | gravel | silt | potting earth"), "the soil is {}", "it grows in {}"),
            slot("shovel borrowed", BOOLEAN, "{} to a borrowed shovel", "shovel borrowed: {}"),
            slot("seed packets", integers(range(3, 28), "{} packets"), "buy {} of seed", "open {}"),
        ),
    ),
    Function(
        "claim_damage", "file an insurance claim",
        (
            slot("incident", strings("burst boiler | stolen bicycle | hail dents | chimney fire | flooded cellar | "
                 "shattered windscreen"), "report a {}", "the incident was a {}"),
            slot("policy id", C.codes, "the policy id is {}", "I am covered under {}"),
            slot("loss amount", _EUROS, "I lost {}", "claim {}"),
            slot("witness", C.people, "{} saw it", "the witness is {}"),
            slot("incident day", C.dates, "it happened on {}", "the damage dates from {}"),
            slot("police report", BOOLEAN, "{} to a police report", "police report filed: {}"),
            slot("payout method", strings("bank transfer | cheque | prepaid chip | cash | wire draft | postal giro"), "pay me by {}",
                 "the payout method is {}"),
            slot("evidence", lists("snapshots | receipts | sketches | testimony | footage"), "I attach {}",
                 "the evidence is {}"),
            slot("adjuster", C.first_names, "let {} inspect it", "the adjuster is {}"),
            slot("excess", _PLAIN, "I bear {} myself", "the excess is {}"),
        ),
    ),
    Function(
        "print_poster", "print a poster",
        (
            slot("motif", combine("{} {}", "sleeping | dancing | flying | roaring", "whale | robot | dragon | astronaut"),
                 "print a {}", "the motif is a {}"),
            slot("sheet grade", strings("matte | glossy | recycled | linen | cardstock | canvas"), "on {} paper",
                 "the paper is {}"),
            slot("copies", integers(range(6, 400, 7), "{} copies"), "run {}", "make {}"),
            slot("ink", strings("cyan | magenta | metallic bronze | charcoal | fluorescent yellow | sepia | teal"), "print with {} ink",
                 "the ink is {}"),
            slot("laminated", BOOLEAN, "{} to laminated", "laminated finish: {}"),
            slot("poster height", integers(range(30, 220, 10), "{} centimeters"), "make it {} tall",
                 "the height is {}"),
            slot("slogan", strings("save the whales | dare to wander | remain curious | question everything | grow something | peace now"),
                 "print {} below", "the slogan is {}"),
            slot("margin", decimals([n / 4 for n in range(5, 40)], "{} inches"), "leave {} blank",
                 "the margin is {}"),
            slot("designer", C.people, "credit {}", "the designer is {}"),
            slot("exhibition venue", C.cities, "it hangs in {}", "show it in {}"),
        ),
    ),
)  # fmt: skip
