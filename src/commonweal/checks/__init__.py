"""The promises of rules, client methods and other parts, as checks that run on any of them."""

from commonweal.checks.clients import CLIENT_CHECKS, check_client
from commonweal.checks.parts import check_channel, check_sampler, check_server
from commonweal.checks.rules import RULE_CHECKS, check_rule

__all__ = ["CLIENT_CHECKS", "RULE_CHECKS", "check_channel", "check_client", "check_rule"]
__all__ += ["check_sampler", "check_server"]
