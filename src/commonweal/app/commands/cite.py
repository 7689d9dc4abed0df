"""`commonweal cite`: the publications behind runs, as BibTeX."""

from commonweal.app.commands import console
from commonweal.app.commands.options import RunFolders


def cite(folders: RunFolders) -> None:
    """Print BibTeX for the rules, methods and data that runs used, and for Commonweal.

    For example: commonweal cite runs/vowel-compare > refs.bib
    """
    from commonweal.report.citing import bibtex
    from commonweal.study.labels import runs_in

    text, missing = bibtex(runs_in(folders))
    print(text, end="")
    if missing:
        console.say(f"without a reference: {', '.join(missing)}")
