"""Remarks on a run while it runs: every kind of remark once."""

from collections.abc import Callable, Mapping

from commonweal.data import describe
from commonweal.jobs.job import Job
from commonweal.jobs.rounds import Round

MOST_CLIENTS = 5  # whose dropped or capped replies are reported one by one


class Remarks:
    """Says what is remarkable about a job and its rounds.

    say: prints a line; None: prints nothing
    """

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self.print = say
        self.kinds: set[str] = set()  # of warnings that were said
        self.clients: dict[str, set[str]] = {"dropped": set(), "capped": set()}

    def say(self, text: str) -> None:
        if self.print is not None:
            self.print(text)

    def about_job(self, job: Job) -> None:
        """Say what is unusual about the data, and how clients are computed if not as requested."""
        if job.local is not None:
            for sentence in describe.remarks(job.local.federation):
                self.say(sentence)
        promise = job.algorithm.promise
        if promise is not None:
            self.say(promise.sentence)
            self.say(promise.cost)
        facts = job.engine.facts(job.algorithm)
        if job.settings.vectorize not in ("auto", facts.vectorize or "auto"):
            self.say(f"vectorize: {facts.vectorize}, because {facts.vectorize_because}")
        if facts.ranks is not None and facts.ranks > job.cohort:
            idle = facts.ranks - job.cohort
            self.say(f"{facts.ranks} ranks for a cohort of {job.cohort}: {idle} have nothing to do")

    def about_round(self, done: Round) -> None:
        """Say warnings of a new kind, and whose replies are dropped or capped the first time."""
        for warning in done.warnings:
            kind = warning.partition(":")[0]  # the rule, as in "vred: beta = ..."
            if kind not in self.kinds:
                self.kinds.add(kind)
                self.say(f"round {done.number}: {warning}")
        if done.job.algorithm.promise is not None:
            return  # who failed is private
        self._about_clients(done.number, "dropped", done.dropped)
        self._about_clients(done.number, "capped", done.capped)

    def _about_clients(self, number: int, what: str, reasons: Mapping[str, str]) -> None:
        known = self.clients[what]
        for client, reason in reasons.items():
            if client in known or len(known) > MOST_CLIENTS:
                continue
            known.add(client)
            if len(known) <= MOST_CLIENTS:
                self.say(f"round {number}: the reply of {client} was {what}: {reason}")
            else:
                self.say(f"round {number}: more replies were {what}: see rounds.jsonl")
