"""What leaves a run: predictions, exported models, model cards and badges."""

from commonweal.export.forms import FORMS, Form, card, export, write_card

__all__ = ["FORMS", "Form", "card", "export", "write_card"]
