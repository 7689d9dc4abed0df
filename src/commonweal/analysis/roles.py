"""Guesses which columns of a table are labels, clients, codes and times.

Names, positions and contents count together: a name alone says little (`y0` among `y0` to `y9`),
and so does a position. What is guessed is always reported, with the next candidate.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from commonweal.datasets._tables import ID_NAME, Profile

__all__ = [
    "Candidate",
    "codes",
    "is_people",
    "names_clients",
    "order_column",
    "rank_clients",
    "rank_labels",
    "split_column",
    "survival",
    "words",
]

# Words of names in English, German, French, Spanish, Italian, Portuguese and Dutch.
LABELS = re.compile(
    "labels?|target|class|klasse|classe|clase|ziel(variable)?|cible|objetivo|etichetta|outcomes?|"
    "ergebnis|result|resultat|resultado|esito|uitkomst|utfall|response|diagnos(is|e|tic|tico|i)|"
    "died|dead|death|deceased|mortality|survived|alive|gestorben|verstorben|tod|deces|fallecido|"
    "morto|overleden|event|disease|ill|sick|krank|churn|default|fraud|readmi(tted|ssion)|relapse|"
    "rezidiv|recurrence|dropout"
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
            "hosp(ital)?(num|id|nr|no|es|s)?|clini(c|cs|ca|que)|klinik\\w*|krankenhaus|"
            "sites?(id)?|cent(er|re)s?|zentr(um|en)|institut\\w*|practice|praxis|facility|trust|"
            "provider|standort|hopital|ospedale|ziekenhuis",
            "ward|dep(ar)?t(ment)?|abteilung|station|unit|school|schule|ecole|escuela|scuola|"
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
PEOPLE = CLIENTS[3]  # clients whose rows are usually repeated measurements
CODES = re.compile(
    "\\w*(code|kode|schlussel)s?|typ|type|mode|status|[ck]ategor(y|ie|ia)|group|gruppe|na[ct]ionality|"
    "nationalitaet|qualification|occupation|profession|beruf|job|race|ethnic(ity)?|religion|"
    "language|marital|zip|plz|postcode|icd|atc|cluster|species|breed|colou?r|(sub)?class|reason|"
    "cause|diagnos(is|e)|method"
)
SPLITS = re.compile("folds?|split|splits|set|subset|partition|cv")
TIMES = re.compile(
    "times?|zeit|temps|tiempo|tempo|tijd|t|duration|dauer|survival|os|pfs|dfs|rfs|tte|futime|"
    "followup(time)?|surv?time|timetoevent"
)
WEAK_TIMES = re.compile("days?|months?|weeks?|years?|tage|monate|stop")
EVENTS = re.compile(
    "events?|e|status|died|dead|death|deceased|mortality|fustat|delta|tod|gestorben|deces|relapse|"
    "recurrence|failure"
)
WHEN = re.compile(
    "date|datum|fecha|data|timestamp|time|zeit|temps|visit[ea]?|session|days?|week|month|year|"
    "trial|wave|round|epoch|sequence|seq|step"
)
WORD = re.compile(r"[A-Z]+(?![a-zà-ÿ])|[A-Z]?[a-zà-ÿ]+|[A-Z]+|[^\W\d_]+")
ACCENTS = str.maketrans("àáâäãçèéêëìíîïñòóôöõùúûüß", "aaaaaceeeeiiiinooooouuuus")
SERIES = 3  # columns called x1, x2, x3 belong together
MOST_CLASSES = 20
MOST_CODES = 60  # different numbers of a column of codes
LEAST_ROWS = 3  # of a client, on average


class Candidate(NamedTuple):
    """A column, how well it fits, and why."""

    name: str
    points: float
    why: str


def words(name: str) -> list[str]:
    """The words of a column's name, in lower case and without accents.

    >>> words("Father's qualification"), words("HOSPNUM"), words("timeToEvent_2"), words("subject#")
    (['father', 's', 'qualification'], ['hospnum'], ['time', 'to', 'event'], ['subject'])
    """
    return [word.lower().translate(ACCENTS) for word in WORD.findall(name)]


def _has(name: str, vocabulary: re.Pattern[str]) -> bool:
    """Whether a word of a name, or all of them together, is in a vocabulary."""
    return any(vocabulary.fullmatch(word) for word in (*words(name), "".join(words(name))))


def _stem(name: str) -> str:
    return re.sub(r"\d+", "#", name.lower())


def _in_series(profiles: Mapping[str, Profile]) -> set[str]:
    """The columns that are called like at least two others, but for numbers."""
    counts = Counter(_stem(name) for name in profiles)
    return {name for name in profiles if "#" in _stem(name) and counts[_stem(name)] >= SERIES}


# Labels


def rank_labels(profiles: Mapping[str, Profile], client: str | None) -> list[Candidate]:
    """The columns that may hold the labels, the likeliest first."""
    taken = () if client is None else (client, *client.split(","))
    series = _in_series(profiles)
    last = len(profiles) - 1
    candidates = []
    for position, (name, profile) in enumerate(profiles.items()):
        if name in taken or profile.is_id or profile.different < 2:
            continue
        if profile.column.becomes == "date":
            continue
        points, reasons = 0.0, []
        if name in series:
            points -= 3
        elif _has(name, LABELS):
            points += 4 if len(words(name)) == 1 else 3
            reasons.append("its name")
        elif _has(name, WEAK_LABELS):
            points += 2 if len(words(name)) == 1 else 1.5
            reasons.append("its name")
        if _has(name, NOT_LABELS) or any(_has(name, known) for known in CLIENTS):
            points -= 3
        if position == last or (position == last - 1 and list(profiles)[-1] in taken):
            points += 1
            reasons.append("its position")
        elif position == 0:
            points += 0.5
        if _is_class(profile):
            points += 1
            reasons.append(f"{profile.different} different values")
        why = ", ".join(reasons) or "nothing but that others fit less"
        candidates.append(Candidate(name, points, why))
    return sorted(candidates, key=lambda candidate: -candidate.points)


def _is_class(profile: Profile) -> bool:
    is_number = profile.column.becomes == "number"
    return profile.different <= MOST_CLASSES and (not is_number or profile.whole)


def survival(profiles: Mapping[str, Profile]) -> tuple[str, bool] | None:
    """Columns of times and events, "time,event", and whether their names leave little doubt."""
    events = [p for p in profiles.values() if _has(p.name, EVENTS) and p.different == 2]
    events = [p for p in events if p.column.becomes in ("number", "boolean") and p.whole]
    events.sort(key=lambda p: "event" not in p.name.lower())
    numbers = [p for p in profiles.values() if p.column.becomes == "number" and p.different > 20]
    times = [p for p in numbers if _has(p.name, TIMES)]
    weak = [p for p in numbers if _has(p.name, WEAK_TIMES)]
    if not events or not (times or weak):
        return None
    time = (times or weak)[0]
    return f"{time.name},{events[0].name}", bool(times)


# Clients


def rank_clients(profiles: Mapping[str, Profile], label: str | None) -> list[Candidate]:
    """The columns that may name the clients, the likeliest first: by name, with several rows."""
    taken = () if label is None else (label, *label.split(","))
    series = _in_series(profiles)
    candidates = []
    for name, profile in profiles.items():
        if name in taken or name in series or not _may_name(profile):
            continue
        for rank, vocabulary in enumerate(CLIENTS):
            if _has(name, vocabulary):
                points = len(CLIENTS) - rank - 0.5 * (len(words(name)) > 2)
                why = f"its name, {profile.different} different values"
                candidates.append(Candidate(name, points, why))
                break
    return sorted(candidates, key=lambda candidate: -candidate.points)


def _may_name(profile: Profile) -> bool:
    becomes = profile.column.becomes
    is_name = becomes == "text" or (becomes == "number" and profile.whole)
    return is_name and 2 <= profile.different <= profile.first_rows / LEAST_ROWS


# Codes and times


def codes(profile: Profile, values: np.ndarray) -> bool:
    """Whether whole numbers look like codes: by their name, or by gaps and uneven frequencies."""
    known = values[~np.isnan(values)]
    different, counts = np.unique(known, return_counts=True)
    if not profile.whole or not 3 <= len(different) <= MOST_CODES or different[0] < 0:
        return False
    if len(known) < LEAST_ROWS * len(different):
        return False
    if _has(profile.name, CODES) or any(_has(profile.name, c) for c in CLIENTS[1:]):
        return True
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
    """Whether frequencies jump from one number to the next, unlike those of measurements."""
    peaks = (counts[1:-1] > 2 * counts[:-2]) & (counts[1:-1] > 2 * counts[2:])
    return bool(peaks.sum() >= 0.15 * len(counts))


def is_people(client: str | None) -> bool:
    """Whether clients are people or machines, whose rows are usually repeated measurements."""
    return client is not None and _has(client, PEOPLE)


def names_clients(name: str) -> bool:
    """Whether a column is called like one that names or numbers clients."""
    return bool(ID_NAME.search(name)) or any(_has(name, c) for c in (CODES, *CLIENTS))


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
