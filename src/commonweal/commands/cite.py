"""`commonweal cite`: the publications behind runs, as BibTeX."""

from commonweal.commands import console
from commonweal.commands.options import RunFolders


def cite(folders: RunFolders) -> None:
    """Print BibTeX for the rules, methods and data that runs used, and for Commonweal.

    For example: commonweal cite runs/vowel-compare > refs.bib
    """
    from commonweal.analysis.labels import find_runs
    from commonweal.report.citing import bibtex

    text, missing = bibtex(find_runs(folders))
    print(text, end="")
    if missing:
        console.say(f"without a reference: {', '.join(missing)}")
