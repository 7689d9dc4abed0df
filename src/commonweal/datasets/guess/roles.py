"""Guesses which columns of a table are labels, clients, codes and times.

Names, positions and contents count together: a name alone says little (`y0` among `y0` to `y9`),
and so does a position. What is guessed is always reported, with the next candidate.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from commonweal.data.tables.columns import ID_NAME, Profile

# Words of names in English, German, French, Spanish, Italian, Portuguese, Dutch and Polish.
LABELS = re.compile(
    "labels?|target|class|klasse|classe|clase|klasa|ziel(variable)?|cible|objetivo|etichetta|cel|"
    "outcomes?|ergebnis|mort|result|resultat|resultado|esito|wynik|uitkomst|utfall|response|"
    "diagnos(is|e|tic|tico|i)|died|dead|death|deceased|mortality|survived|alive|gestorben|"
    "verstorben|tod|deces|fallecido|morto|obito|zgon|zmarl|overleden|dod|avliden|olum|kuollut|"
    "umrti|zemrel|halal|event|ereignis|disease|ill|sick|"
    "krank|churn(ed)?|kundigung|default(ed)?|fraud|readmi(t|tted|ssion)|relapse|rezidiv|"
    "recurrence|dropout|passed|failed"
)
AMBIGUOUS = re.compile(  # names of labels and of features: of labels where they stand at an end
    "results?|resultat|resultado|wynik|response|events?|ereignis|disease|class|klasse|classe|clase|"
    "klasa|ill|sick|krank|diagnos(is|e|tic|tico|i)"
)
NEUTRAL = re.compile(  # words with which a label remains one: in_hospital_mortality
    "[a-z]|is|has|in|at|of|to|the|within|days?|months?|years?|hospital|icu|patient|flag|status|binary"
)
WEAK_LABELS = re.compile(
    "y|score|grade|note|price|preis|prix|precio|prezzo|value|wert|status|quality|severity|stage|"
    "risk|category|type|num|total|updrs|mmse|moca|edss|gcs|nihss|mrs|hba1c|los|charges|cost|sales|"
    "income|salary"
)
NOT_LABELS = re.compile(
    "id|age|alter|edad|eta|sex|gender|geschlecht|sexe|sexo|sesso|date|datum|fecha|data|time|name|"
    "index"
)
CLIENTS = tuple(  # the most likely first
    map(
        re.compile,
        (
            "clients?",
            "hosp(ital)?(num|id|nr|no|es|s)?|clini(c|cs|ca|que)|klini[ck]\\w*|krankenhaus|szpital\\w*|"
            "sjukhus|sykehus|sygehus|sairaala|nemocnice|korhaz|spital|hastane|"
            "sites?(id|nr|no)?|cent(er|re|ro|rum)s?|zentr(um|en)|inst(itut\\w*)?|practice|praxis|"
            "facility|trust|provider|standort|hopital|etablissement|ospedale|ziekenhuis|placowka",
            "ward|dep(ar)?t(ement|ment)?|abteilung|oddzial|station|unit|school|schule|ecole|escuela|"
            "scuola|szkola|cntry|ctry|kraj|[ck]anton|gemeinde|commune|wojewodztwo|powiat|miasto|"
            "course|kurs|studiengang|curso|cours|college|university|faculty|branch|filiale|bank|"
            "store|shop|outlet|farm|field|plant|factory|lab(oratory)?|study|cohort|team|"
            "distri(ct|to)|bezirk|county|regione?|municipality|city|stadt|ville|ciudad|state|"
            "provinc(e|ia)|country|land|pays|pais|paese|nation|silo|owner|organi[sz]ation|org|"
            "company|tenant",
            "users?|subjects?(id)?|participants?|proband\\w*|patients?(id)?|persons?|speaker|"
            "customer|kunde|driver|rider|writer|author|device|sensor|machine|engine|vehicle|"
            "household|animal|player|worker",
        ),
    )
)
WEAK_CLIENTS = re.compile("unit|state|land|field|station|device|player|team")  # or features
PEOPLE = CLIENTS[3]  # clients whose rows are usually repeated measurements
CODES = re.compile(
    "\\w*([ck]ode?|codigo|codice|schlu(e)?ssel)s?|typ|type|mode|status|[ck]ategor(y|ie|ia)|group|gruppe|na[ct]ionality|"
    "nationalitaet|qualification|occupation|profession|beruf|job|race|ethnic(ity)?|religion|"
    "language|marital|zip|plz|post(al)?(code)?|icd\\d*|atc|ndc|cip|cluster|species|breed|colou?r|(sub)?class|reason|"
    "cause|diagnos(is|e)|method"
)
SPLITS = re.compile("folds?|split|splits|set|subset|partition|cv")
TIMES = re.compile(
    "times?|\\w*zeit|temps|czas|tiempo|tempo|tijd|t|duration|dauer|survival|os|pfs|dfs|rfs|tte|futime|"
    "followup(time)?|surv?time|timetoevent"
)
WEAK_TIMES = re.compile("days?|months?|weeks?|years?|tage|monate|stop")
OF_SURVIVAL = re.compile(  # words of the name of survival times, unlike `visit time`
    f"{TIMES.pattern}|{WEAK_TIMES.pattern}|to|in|of|event|death|follow|up|obs|observed|overall|free"
)
EVENTS = re.compile(
    "events?|e|status|died|dead|death|deceased|mortality|fustat|delta|tod|gestorben|verstorben|"
    "ereignis|deces|zgon|relapse|recurrence|failure|progression|cens(ored|or|oring)?"
)
WHEN = re.compile(
    "date|datum|fecha|data|timestamp|time|zeit|temps|visit[ea]?|session|days?|week|month|year|"
    "trial|wave|round|epoch|sequence|seq|step"
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
PLAIN = str.maketrans("łŁßøØ", "lLsoO")  # letters that are not one with an accent
SERIES = 3  # columns called x1, x2, x3 belong together
MOST_CLASSES = 20
NAMES_IT = ("label", "labels", "target")  # names that leave no doubt about another column
LEAST_CLEAR = 2  # points of a column whose name says that it is the label
MOST_CODES = 60  # different numbers of a column of codes
LEAST_ROWS = 3  # of a client, on average
SENTINELS = (9.0, 99.0, 999.0, 9999.0, 99999.0, -9.0, -99.0, -999.0, -9999.0)


class ColumnCandidate(NamedTuple):
    """A column, how well it fits, and why."""

    name: str
    points: float
    why: str
    is_clear: bool = False  # its name says that it is the label, or names the clients


@cache
def words(name: str) -> tuple[str, ...]:
    """The words of a column's name, in lower case and without accents.

    >>> words("Father's qualification"), words("HOSPNUM"), words("timeToEvent_2"), words("subject#")
    (('father', 's', 'qualification'), ('hospnum',), ('time', 'to', 'event'), ('subject',))
    """
    letters = unicodedata.normalize("NFD", name.translate(PLAIN))
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return tuple(word.lower() for word in WORD.findall(plain))


def columns(label: str) -> list[str]:
    """The columns that a label of survival times names, "time,event" or "time,event=value"."""
    return [name.partition("=")[0] for name in label.split(",")]


def _has(name: str, vocabulary: re.Pattern[str]) -> bool:
    """Return whether a word of a name, or all of them together, is in a vocabulary."""
    return any(vocabulary.fullmatch(word) for word in (*words(name), "".join(words(name))))


def _names_client(name: str) -> bool:
    return any(_has(name, vocabulary) for vocabulary in CLIENTS)


def _in_series(profiles: Mapping[str, Profile]) -> set[str]:
    """The columns that are called like at least two others, but for numbers."""
    stems = {name: re.sub(r"\d+", "#", name.lower()) for name in profiles}
    counts = Counter(stems.values())
    return {name for name, stem in stems.items() if "#" in stem and counts[stem] >= SERIES}


# Labels


def rank_labels(
    profiles: Mapping[str, Profile], client: str | None, drop: Collection[str] = ()
) -> list[ColumnCandidate]:
    """The columns that may hold the labels, the likeliest first. drop: those that do not"""
    taken = (*drop, *(() if client is None else (client, *client.split(","))))
    series = _in_series(profiles)
    last = len(profiles) - 1
    candidates = []
    for position, (name, profile) in enumerate(profiles.items()):
        becomes = profile.column.becomes
        if name in taken or profile.is_id or profile.different < 2 or becomes == "date":
            continue
        points, reasons = 0.0, []
        if name in series:
            points -= 3
        elif _has(name, LABELS):
            points += 4 if len(words(name)) == 1 else 3
            points += 2 if name.lower() in NAMES_IT else 0
            reasons.append("its name")
        elif _has(name, WEAK_LABELS):
            points += 2 if len(words(name)) == 1 else 1.5
            reasons.append("its name")
        if _has(name, NOT_LABELS) or _names_client(name):
            points -= 3
        if position == last or (position == last - 1 and list(profiles)[-1] in taken):
            points += 1
            reasons.append("its position")
        elif position == 0:
            points += 0.5
        if profile.different <= MOST_CLASSES and (becomes != "number" or profile.whole):
            points += 1
            reasons.append(f"{profile.different} different values")
        why = ", ".join(reasons) or "nothing but that others fit less"
        is_at_end = position == 0 or "its position" in reasons
        is_clear = points >= LEAST_CLEAR and _says_label(profile, is_at_end)
        candidates.append(ColumnCandidate(name, points, why, is_clear))
    return sorted(candidates, key=lambda candidate: -candidate.points)


def _says_label(profile: Profile, is_at_end: bool) -> bool:
    """Return whether a name is that of a label: `died`, unlike `family death`."""
    if profile.name.lower() == "y":
        return True
    parts = words(profile.name)
    told = [word for word in parts if LABELS.fullmatch(word)] or ["".join(parts)]
    others = [word for word in parts if word not in told and not NEUTRAL.fullmatch(word)]
    if not _has(profile.name, LABELS) or (others and "".join(parts) != told[0]):
        return False
    if all(map(AMBIGUOUS.fullmatch, told)) and not is_at_end:
        return False
    few = profile.different <= MOST_CLASSES
    return few or (len(parts) == 1 and profile.column.becomes == "number")


def survival(
    profiles: Mapping[str, Profile], drop: Collection[str] = ()
) -> tuple[str, bool] | None:
    """Columns of times and events, "time,event", and whether their names leave little doubt."""
    profiles = {name: profile for name, profile in profiles.items() if name not in drop}
    both = [p for p in profiles.values() if p.different == 2 and p.whole]
    events = [p for p in both if _has(p.name, EVENTS)]
    events.sort(key=lambda p: "event" not in p.name.lower())
    numbers = [p for p in profiles.values() if p.column.becomes == "number" and p.different > 20]
    times = [p for p in numbers if _has(p.name, TIMES)]
    weak = [p for p in numbers if _has(p.name, WEAK_TIMES)]
    if not events or not (times or weak):
        return None
    time, event = (times or weak)[0], events[0]
    if "cens" in event.name.lower():
        return f"{time.name},{event.name}=0", False
    is_sure = all(map(OF_SURVIVAL.fullmatch, words(time.name))) and bool(times)
    return f"{time.name},{event.name}", is_sure and event.column.becomes != "text"


# Clients


def rank_clients(
    profiles: Mapping[str, Profile], label: str | None, drop: Collection[str] = ()
) -> list[ColumnCandidate]:
    """The columns that may name the clients, the likeliest first: by name, with several rows."""
    taken = (*drop, *(() if label is None else (label, *columns(label))))
    series = _in_series(profiles)
    candidates = []
    for name, profile in profiles.items():
        becomes = profile.column.becomes
        is_name = becomes == "text" or (becomes == "number" and profile.whole)
        enough = 2 <= profile.different <= profile.first_rows / LEAST_ROWS
        if name in taken or name in series or not (is_name and enough):
            continue
        for rank, vocabulary in enumerate(CLIENTS):
            if _has(name, vocabulary):
                points = len(CLIENTS) - rank - 0.5 * (len(words(name)) > 2)
                why = f"its name, {profile.different} different values"
                candidates.append(ColumnCandidate(name, points, why, not _has(name, WEAK_CLIENTS)))
                break
    return sorted(candidates, key=lambda candidate: -candidate.points)


def could_name(profiles: Mapping[str, Profile], label: str) -> list[str]:
    """Columns that might name the clients, though their names do not say so: categories first.

    label: the column that does not; empty: it is not certain
    """
    texts, numbers = [], []
    for name, profile in profiles.items():
        enough = 3 <= profile.different <= profile.first_rows / (3 * LEAST_ROWS)
        if not enough or profile.is_id or name in (label, *columns(label)):
            continue
        if profile.column.becomes == "text":
            texts.append(name)
        elif profile.column.becomes == "number" and profile.whole:
            numbers.append(name)
    return texts + numbers


def one_hot_clients(profiles: Mapping[str, Profile]) -> list[str]:
    """Columns of 0 and 1 that are called like clients, such as site_a, site_b and site_c."""
    groups: dict[str, list[str]] = {}
    for name, profile in profiles.items():
        first = words(name)[:1]
        if profile.different == 2 and first and _names_client(first[0]):
            groups.setdefault(first[0], []).append(name)
    return max(groups.values(), key=len, default=[])


# Codes and times


def stands_for_missing(values: np.ndarray) -> list[float]:
    """Numbers such as 999 or -9 that lie far from all others and occur often."""
    known = values[~np.isnan(values)]
    different, counts = np.unique(known, return_counts=True)
    candidates = []
    for number in SENTINELS:
        rest = different[different != number]
        rows = int(counts[different == number].sum())
        if len(rest) < 2 or rows < max(LEAST_ROWS, 0.005 * len(known)):
            continue
        beyond = number > rest[-1] + 2 * (rest[-1] - rest[0])
        below = number < 0 and rest[0] >= 0 and len(rest) > 2
        if beyond or below:
            candidates.append(number)
    return candidates[:1]


def codes(profile: Profile, values: np.ndarray) -> bool:
    """Return whether whole numbers look like codes: by their name, or by gaps and frequencies."""
    known = values[~np.isnan(values)]
    different, counts = np.unique(known, return_counts=True)
    if not profile.whole or len(different) < 3 or different[0] < 0:
        return False
    if _has(profile.name, CODES) or any(_has(profile.name, c) for c in CLIENTS[1:]):
        return True
    if len(different) > MOST_CODES or len(known) < LEAST_ROWS * len(different):
        return False
    sparse = _density(different)
    if len(different) < 5 or sparse > 0.6:
        return False
    return len(known) > 20 * len(different) and (sparse < 0.25 or _is_rough(counts))


def _density(different: np.ndarray) -> float:
    """The share of the possible numbers between the lowest and the highest that occur."""
    step = max(1, int(np.gcd.reduce((different - different[0]).astype(np.int64))))
    widest = np.diff(different).max()  # of a single far number, such as 99 for unknown
    return float(len(different) / max((different[-1] - different[0] - widest) / step + 1, 1))


def _is_rough(counts: np.ndarray) -> bool:
    """Return whether frequencies jump from one number to the next, unlike those of measurements."""
    peaks = (counts[1:-1] > 2 * counts[:-2]) & (counts[1:-1] > 2 * counts[2:])
    return bool(peaks.sum() >= 0.15 * len(counts))


def is_people(client: str | None) -> bool:
    """Return whether clients are people or machines, whose rows are often repeated measurements."""
    return client is not None and _has(client, PEOPLE)


def names_clients(name: str) -> bool:
    """Return whether a column is called like one that names or numbers clients."""
    return bool(ID_NAME.search(name)) or _has(name, CODES) or _names_client(name)


def split_column(profiles: Mapping[str, Profile]) -> str | None:
    """The column that says which rows are test rows, if there is one."""
    for name, profile in profiles.items():
        few = 2 <= profile.different <= MOST_CLASSES and profile.gaps == 0
        if few and _has(name, SPLITS) and len(words(name)) == 1 and profile.whole:
            return name
    return None


def order_column(profiles: Mapping[str, Profile], client: str | None) -> str | None:
    """The column of times of repeated measurements of people or machines, if there is one."""
    if not is_people(client):
        return None
    dates = [name for name, p in profiles.items() if p.column.becomes == "date"]
    if dates:
        return dates[0]
    for name, profile in profiles.items():
        is_number = profile.column.becomes == "number" and profile.different > 5
        if is_number and name != client and _has(name, WHEN):
            return name
    return None
