"""The private forms of rules of losses: cvar, term, semi-vred and aaggff-d.

Each is its rule with the cohort's own quantile, mean or normaliser replaced by a public number that
follows it from round to round. Sample counts do not enter: they would be one more thing to hide.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.rules.online import CDF, scaled_cdf
from commonweal.rules.private_form import Federated, PrivateForm, Weighed, number, tracked

LEAST_LOSS = 0.01  # of the mean loss, relative to the bound
LEAST_WEIGHT = 0.2  # of the mean weight, by which weights are divided
LEAST_QUANTILE = 1e-3  # of a quantile of the losses, relative to the bound
QUANTILE_RATE = 0.3


@dataclass(frozen=True)
class PrivateCVaR(PrivateForm):
    """h = 1[f >= Q] / (1 - theta); Q <- Q exp(-rate (share of losses below Q - theta))"""

    theta: float = 0.5

    statistics = 1

    def init(self, known: Federated) -> Tensors:
        return {"quantile": number(known.loss)}

    def weigh(self, losses: Tensor, memory: Tensors, public: Tensors) -> Weighed:
        below = (losses < public["quantile"]).to(losses.dtype)
        return Weighed((1 - below) / (1 - self.theta), below[:, None] - 0.5, memory)

    def most(self, public: Tensors) -> float:
        return 1 / (1 - self.theta)

    def learn(self, public: Tensors, means: Tensor) -> Tensors:
        below = (means[0].double() + 0.5).clamp(0, 1)
        moved = public["quantile"] * torch.exp(-QUANTILE_RATE * (below - self.theta))
        return {"quantile": moved.clamp(LEAST_QUANTILE * self.bound, self.bound)}


@dataclass(frozen=True)
class PrivateTERM(PrivateForm):
    """h = min(exp(t (f / mean - 1)), cap) / normaliser; both are followed"""

    t: float = 1.0

    statistics = 2

    def init(self, known: Federated) -> Tensors:
        return {"mean": number(known.loss), "normaliser": number(1.0)}

    def weigh(self, losses: Tensor, memory: Tensors, public: Tensors) -> Weighed:
        raw = torch.exp(self.t * (losses / public["mean"] - 1)).clamp(max=self.cap)
        statistics = [losses / self.bound, raw / self.cap]
        return Weighed(raw / public["normaliser"], torch.stack(statistics, 1) - 0.5, memory)

    def most(self, public: Tensors) -> float:
        return self.cap / float(public["normaliser"])

    def learn(self, public: Tensors, means: Tensor) -> Tensors:
        return {
            "mean": tracked(public["mean"], means[0], self.bound, LEAST_LOSS * self.bound),
            "normaliser": tracked(public["normaliser"], means[1], self.cap, LEAST_WEIGHT),
        }


@dataclass(frozen=True)
class PrivateSemiVRed(PrivateForm):
    """h = 1 + 2 beta ((f - mean)_+ - excess), in [0, cap]; mean and mean excess are followed"""

    beta: float = 1.0

    statistics = 2

    def init(self, known: Federated) -> Tensors:
        return {"mean": number(known.loss), "excess": number(0.0)}

    def weigh(self, losses: Tensor, memory: Tensors, public: Tensors) -> Weighed:
        excess = (losses - public["mean"]).clamp(min=0)
        weights = (1 + 2 * self.beta * (excess - public["excess"])).clamp(0, self.cap)
        statistics = [losses / self.bound, excess / self.bound]
        return Weighed(weights, torch.stack(statistics, 1) - 0.5, memory)

    def most(self, public: Tensors) -> float:
        return self.cap

    def learn(self, public: Tensors, means: Tensor) -> Tensors:
        return {
            "mean": tracked(public["mean"], means[0], self.bound, LEAST_LOSS * self.bound),
            "excess": tracked(public["excess"], means[1], self.bound, 0.0),
        }


@dataclass(frozen=True)
class PrivateAAggFFD(PrivateForm):
    """c_i += (r_i - r) / (C (1 + r)), kept by the client; h = min(exp(rate c_i), cap) / normaliser

    r_i = low + (high - low) CDF(f_i / mean). Mean loss, mean response and normaliser are followed.
    """

    cdf: CDF = "normal"
    low: float = 0.0
    high: float | None = None
    scale: float = 1.0
    lipschitz: float | None = None

    statistics = 3

    def init(self, known: Federated) -> Tensors:
        high = known.rate if self.high is None else self.high
        spread = (high - self.low) / known.rate
        lipschitz = self.lipschitz or (high + 2 * spread) / (1 + self.low)
        return {
            "round": number(1.0),
            "spread": number(spread),
            "range": number(high - self.low),
            "step": number(math.sqrt(math.log(known.clients)) / lipschitz),
            "mean": number(known.loss),
            "response": number(0.5),
            "normaliser": number(1.0),
        }

    def init_client(self) -> Tensors:
        return {"sum": torch.zeros((), dtype=torch.float64)}

    def weigh(self, losses: Tensor, memory: Tensors, public: Tensors) -> Weighed:
        response = scaled_cdf(losses / public["mean"], self.cdf, self.scale)
        mean = self.low + public["range"] * public["response"]
        gain = public["spread"] * (response - public["response"]) / (1 + mean)
        total = memory["sum"] + gain
        rate = public["step"] / torch.sqrt(public["round"] + 1)
        raw = torch.exp(rate * total).clamp(max=self.cap)
        columns = [losses / self.bound, response, raw / self.cap]
        statistics = torch.stack(columns, 1) - 0.5
        return Weighed(raw / public["normaliser"], statistics, {"sum": total})

    def most(self, public: Tensors) -> float:
        return self.cap / float(public["normaliser"])

    def learn(self, public: Tensors, means: Tensor) -> Tensors:
        return public | {
            "round": public["round"] + 1,
            "mean": tracked(public["mean"], means[0], self.bound, LEAST_LOSS * self.bound),
            "response": tracked(public["response"], means[1], 1.0, 0.0),
            "normaliser": tracked(public["normaliser"], means[2], self.cap, LEAST_WEIGHT),
        }
