"""Template wordings of one edit each: what users say when they add, change or withdraw something.

Two lists a kind: `train`, and `heldout` with wordings of its own, so that memorised wordings are visible.
Fields: `{text}` a goal's text without its full stop, `{do}` and `{Do}` the same where it is an imperative
("deliver to Brooklyn"), `{sentence}` a full sentence, `{slot}` the slot with its article (`{Slot}`: with
a capital), `{value}`, `{old}` and `{new}` (values, or texts of free-text goals). A template that starts
with "+" only follows an earlier message ("Also, ..."). No template holds a number or any other word of
content.
"""

from __future__ import annotations

TRAIN: dict[str, tuple[str, ...]] = {
    # A goal with slot and value, stated for the first time.
    "add_slot": (
        "{Do}, please.",
        "Please {do}.",
        "{sentence}",
        "So, {text}.",
        "I want you to {do}.",
        "For {slot}, I want {value}.",
        "Set {slot} to {value}.",
        "As for {slot}, go with {value}.",
        "{Slot}: {value}.",
        "{Slot} should be {value}.",
        "I'd like {slot} to be {value}.",
        "Use {value} for {slot}.",
        "+Also, {text}.",
        "+And please {do}.",
        "+Next, put down {value} as {slot}.",
    ),
    # A goal in free text: a sentence or a clause.
    "add_text": (
        "{sentence}",
        "Here is something you need to know. {sentence}",
        "Please take this into account: {text}.",
        "Note this: {text}.",
        "Keep this in mind: {text}.",
        "Let me tell you a part of it. {sentence}",
        "This belongs to it: {text}.",
        "What I want is this: {text}.",
        "+There is more: {text}.",
        "+Another thing. {sentence}",
        "+Add this to what I said: {text}.",
    ),
    # A goal in free text that is a question.
    "add_question": (
        "{sentence}",
        "What I want to know: {sentence}",
        "My question: {sentence}",
        "This is what I ask. {sentence}",
        "Please find out: {sentence}",
        "I wonder: {sentence}",
        "Tell me: {sentence}",
        "The question is this: {sentence}",
    ),
    # A new value for a slot; the slot is named.
    "replace_slot": (
        "Change {slot} to {new}.",
        "Actually, make {slot} {new}.",
        "I changed my mind about {slot}: {new}.",
        "{Slot} should be {new} instead.",
        "Correction: {slot} is {new}.",
        "Sorry, I meant {new} for {slot}.",
        "On second thought, set {slot} to {new}.",
        "Please switch {slot} from {old} to {new}.",
        "For {slot}, take {new} and not {old}.",
        "Let's update {slot}: {new}.",
        "Instead of {old}, {slot} should be {new}.",
        "I was wrong about {slot}. It's {new}.",
    ),
    # A new value in place of an old one; the slot is left to be understood.
    "replace_old": (
        "Not {old}, rather {new}.",
        "Make that {new} instead of {old}.",
        "I said {old}, but I meant {new}.",
        "Replace {old} with {new}.",
        "No, {new}, not {old}.",
        "Rather than {old}, I'd prefer {new}.",
        "Scratch {old}, go for {new}.",
        "Where I said {old}, read {new}.",
        "Change {old} to {new}, please.",
    ),
    # Free text in place of free text.
    "replace_text": (
        'Forget what I said: "{old}". It should be: "{new}".',
        'Instead of "{old}", take this: "{new}".',
        'Correction. Not "{old}", but "{new}".',
        'I was wrong about this: "{old}". Right is: "{new}".',
        'Change "{old}" to "{new}".',
        'Replace this: "{old}". The new version is: "{new}".',
        'Where I said "{old}", I meant "{new}".',
        'On second thought, "{new}", and not "{old}".',
        'Sorry, I mixed that up. It is "{new}" rather than "{old}".',
    ),
    "delete_slot": (
        "Drop {slot}.",
        "Forget about {slot}.",
        "Never mind {slot}.",
        "I no longer care about {slot}.",
        "Leave {slot} out after all.",
        "Please remove {slot} again.",
        "Ignore what I said about {slot}.",
        "Skip {slot}, I don't need that.",
        "I take back what I said about {slot}.",
        "Cancel {slot}.",
    ),
    "delete_text": (
        'Drop this: "{text}".',
        'Forget that I said "{text}".',
        'Never mind "{text}".',
        'This no longer holds: "{text}".',
        'Leave this out after all: "{text}".',
        'Please remove this again: "{text}".',
        'I take this back: "{text}".',
        'Ignore my earlier remark "{text}".',
        'Cancel this: "{text}".',
    ),
    "switch": (
        "Let's do {new} instead.",
        "Actually, I want {new} now.",
        "Change of plan: {new}.",
        "Let me move on to {new}.",
        "Please turn to {new}.",
        "I'd rather do {new}.",
        "Forget the other job, do {new}.",
        "What I need is {new} after all.",
    ),
    "small_talk": (
        "Thanks so far.",
        "Hold on a moment, I'm still thinking.",
        "Good, this is going well.",
        "Let me see what else there is.",
        "Sorry, I got held up there.",
        "That all sounds fine to me.",
        "Hm, let me think.",
        "I'm just reading over my notes.",
        "Great, I appreciate the help.",
        "Nothing new here yet.",
    ),
    "final": (
        "That's all. Please give me your answer.",
        "Go ahead and answer now.",
        "That is everything. What is the result?",
        "Okay, please go ahead.",
        "I'm done. Please finish it now.",
        "You have all you need, go ahead.",
        "Nothing more from me. Please give the final answer.",
        "Please go ahead with what I want now.",
        "Now please do it.",
        "Ready when you are: your answer, please.",
    ),
    "list": (
        "This is all of it:",
        "Here is the full list:",
        "What I want:",
        "These are my points:",
        "All that counts is this:",
        "My wishes are:",
        "Everything you need:",
        "The points are:",
    ),
}

HELDOUT: dict[str, tuple[str, ...]] = {
    "add_slot": (
        "Could you {do}?",
        "Make sure to {do}.",
        "When it comes to {slot}, pick {value}.",
        "{Slot} has to be {value}.",
        "My choice for {slot} is {value}.",
        "+On top of that, {text}.",
    ),
    "add_text": (
        "Consider this: {text}.",
        "A fact for you. {sentence}",
        "Don't lose sight of this: {text}.",
        "You will need this. {sentence}",
        "+Furthermore: {text}.",
    ),
    "add_question": (
        "To be answered: {sentence}",
        "Work this out for me: {sentence}",
        "What has to come out of it: {sentence}",
        "I'd like to hear: {sentence}",
    ),
    "replace_slot": (
        "Hmm, {slot} would be better as {new}.",
        "Let me revise {slot}: it's now {new}.",
        "I'd sooner have {new} as {slot}.",
        "Could {slot} be {new} after all?",
        "About {slot}: no longer {old}, but {new}.",
    ),
    "replace_old": (
        "Swap {old} for {new}.",
        "Saying {old} was a slip, I want {new}.",
        "Put {new} where I had {old}.",
        "Let's do {new} in place of {old}.",
    ),
    "replace_text": (
        'My mistake: "{old}" has to read "{new}".',
        'Swap "{old}" for "{new}".',
        'Strike "{old}" and put "{new}" there.',
        'It turns out that "{old}" is off; the truth is "{new}".',
    ),
    "delete_slot": (
        "Strike {slot} from the list.",
        "We can do without {slot}.",
        "{Slot} doesn't matter any more.",
        "Scratch {slot} altogether.",
    ),
    "delete_text": (
        'Strike "{text}" from the list.',
        'We can do without "{text}".',
        'Disregard "{text}" from here on.',
        'Scratch that bit: "{text}".',
    ),
    "switch": (
        "New idea: {new}.",
        "Could we go over to {new}?",
        "Drop that job, {new} is what I need.",
        "Let's turn our attention to {new}.",
    ),
    "small_talk": (
        "Bear with me, please.",
        "I'm glad you're helping with this.",
        "Just checking something on my side.",
        "Alright, we're getting there.",
        "You're doing well.",
        "Excuse the delay, I was on the phone.",
        "Right, where was I?",
        "No news from me yet.",
    ),
    "final": (
        "I have nothing to add. Over to you.",
        "Please wrap it up and reply.",
        "Could you give me the outcome?",
        "Alright, let me have it.",
    ),
    "list": (
        "Please note all of these:",
        "What matters to me:",
        "In short, I ask for this:",
        "Below is all I want:",
    ),
}

SETS: dict[str, dict[str, tuple[str, ...]]] = {"train": TRAIN, "heldout": HELDOUT}
