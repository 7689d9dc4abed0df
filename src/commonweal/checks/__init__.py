"""The promises of rules and client methods, as checks that run on any of them."""

from commonweal.checks.clients import CLIENT_CHECKS, check_client
from commonweal.checks.rules import RULE_CHECKS, check_rule

__all__ = ["CLIENT_CHECKS", "RULE_CHECKS", "check_client", "check_rule"]
