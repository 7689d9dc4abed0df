"""What leaves a run: predictions, exported models, model cards and badges."""

from commonweal.export.card import card, write_card
from commonweal.export.forms import FORMS, Form, export

__all__ = ["FORMS", "Form", "card", "export", "write_card"]
