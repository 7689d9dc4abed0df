"""Reasons to end a run: no replies, no finite updates, or no losses for a rule that needs them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from commonweal.base.errors import DivergedError, RunError
from commonweal.config import catalog
from commonweal.flower.content import metrics_of
from commonweal.flower.messages import Answers
from commonweal.flower.reports import Losses, Report, column, listed
from commonweal.protocols.algorithm import Outcome
from commonweal.rules.rule import Rule, negative_losses

LOST_ROUNDS = 5  # in a row in which every update is not finite: training has diverged
SILENT_ROUNDS = 3  # in a row in which nobody answers: nobody will
LACKING_REPLIES = 2  # of a client that has never reported a loss: it never will
NO_LOSSES = "no losses were known"
NEGATIVE = "losses were below 0"


@dataclass
class RunChecks:
    """Counts over the rounds of a run, and the errors that follow from them.

    Args:
        rule: The rule.
        losses: Where its losses come from.
        strict: Raise an error where the rule lacks losses, instead of counting such rounds.
        loss_key: The metric with the loss before training.
    """

    rule: Rule
    losses: Losses
    strict: bool
    loss_key: str
    silent: int = 0  # rounds in a row
    diverged: int = 0  # rounds in a row
    fallbacks: Counter[str] = field(default_factory=Counter)  # rounds by reason
    lacking: Counter[str] = field(default_factory=Counter)  # replies without a loss, by client
    reporting: set[str] = field(default_factory=set)  # clients that have reported a loss

    def check_silent(self, number: int, answers: Answers) -> None:
        """Raise RunError where nobody has answered for several rounds."""
        nobody = not answers.contents and all(p.passing for p in answers.failed.values())
        self.silent = self.silent + 1 if answers.failed and nobody else 0
        if self.silent == SILENT_ROUNDS:
            client, problem = next(iter(answers.failed.items()))
            raise RunError(
                f"no client has answered in rounds {number - SILENT_ROUNDS + 1} to {number} (of "
                f"node {client}: {problem.text}): look at the logs of the SuperNodes, and give "
                "them more time with timeout=; resume=True continues the run"
            )

    def check_diverged(self, number: int, outcome: Outcome) -> None:
        """Raise DivergedError where no update has been finite for several rounds."""
        lost = len(outcome.clients) == 0 and bool(outcome.dropped)
        self.diverged = self.diverged + 1 if lost else 0
        if self.diverged == LOST_ROUNDS:
            first = number - LOST_ROUNDS + 1
            raise DivergedError(
                f"training diverged in round {first}: no client's update is finite since then; "
                "lower the clients' learning rate"
            )

    def fallback(self, usable: Sequence[Report], answers: Answers, expected: bool) -> str:
        """The reason why a round has the weights of FedAvg; empty: the rule decides.

        Args:
            usable: The reports that can be used.
            answers: All replies.
            expected: Whether losses should be known by now.

        Raises:
            RunError: There is a reason, and it is no accident of the first round.
        """
        if "loss" not in self.rule.needs or not usable:
            return ""
        losses = column(usable, "loss")
        reason = ""
        if all(report.loss is None for report in usable):
            reason = NO_LOSSES
            if self.strict and expected:
                what = f"no client reported {self.loss_key!r}"
                if self.losses == "evaluate":
                    what = "no evaluation with a loss has been aggregated"
                self.no_losses(what, answers)
        elif negative := negative_losses(self.rule.needs, losses[losses.isfinite()]):
            reason = NEGATIVE
            if self.strict:
                lowest = usable[int(losses.nan_to_num(nan=0.0).argmin())].name
                raise RunError(
                    f"rule {self.name!r}: {negative}. The lowest is of client {lowest}. "
                    "strict=False goes on with the weights of FedAvg"
                )
        if reason:
            self.fallbacks[reason] += 1
        return reason

    def check_losses(self, usable: Sequence[Report], answers: Answers) -> None:
        """Count replies of clients without a loss. Raises RunError where one never reports any."""
        if "loss" not in self.rule.needs:
            return
        for report in usable:
            if report.loss is not None:
                self.reporting.add(report.name)
                continue
            self.lacking[report.name] += 1
            never = report.name not in self.reporting
            if self.strict and never and self.lacking[report.name] >= LACKING_REPLIES:
                sent = ", ".join(sorted(metrics_of(answers.contents[report.node])))
                raise RunError(
                    f"client {report.name} has reported no loss in {self.lacking[report.name]} "
                    f"rounds (it reported {sent}), so that the rule {self.name!r} cannot help it: "
                    "give it the ClientApp of the others, with the mod loss_before_training; "
                    "strict=False goes on with the others' mean loss in its place"
                )

    def no_losses(self, what: str, answers: Answers) -> None:
        """Raise RunError: no client has a loss."""
        raise RunError(
            f"the rule {self.name!r} decides by the clients' losses of the received model, but "
            f"{what} (they reported {answers.metrics or 'nothing'}). Add the loss in the "
            "ClientApp, @app.train(mods=[loss_before_training(app)]) with "
            "commonweal.flower.loss_before_training, or use those of each client's last "
            'evaluation, FairStrategy(..., losses="evaluate"). strict=False goes on with the '
            "weights of FedAvg"
        )

    @property
    def name(self) -> str:
        """The rule's name."""
        return str(catalog.named_part(self.rule)["name"])

    def summary(self, rounds: int) -> list[str]:
        """What was not as asked for in a run of so many rounds, for its end."""
        lines = []
        for reason, count in self.fallbacks.items():
            lines.append(f"FedAvg weights in {count} of {rounds} rounds: {reason}")
        if self.lacking:
            counts = [f"{name} ({count})" for name, count in self.lacking.items()]
            lines.append(f"the others' mean loss in place of a client's own: {listed(counts)}")
        return lines
