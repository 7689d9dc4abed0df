"""Language models: a causal loss like that of transformers, and adapters of peft there and back."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import commonweal
from commonweal import Federation, Task
from commonweal.task.task import Batch

V, L = 30, 9
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
GENERATOR = torch.Generator().manual_seed(0)


def client(n: int) -> TensorDataset:
    ids = torch.randint(0, V, (n, L), generator=GENERATOR)
    lengths = torch.randint(3, L + 1, (n, 1), generator=GENERATOR)
    return TensorDataset(ids, torch.where(torch.arange(L) < lengths, ids, -100))


DATA = {f"c{n}": client(n) for n in (12, 20, 30)}
FEDERATION = Federation.from_datasets(DATA, test=0.25)


def by_torch(outputs: Tensor, y: Tensor) -> float:
    """The mean over all positions that count, as transformers has it."""
    return float(F.cross_entropy(outputs[:, :-1].flatten(0, 1), y[:, 1:].flatten()))


def test_a_causal_loss_predicts_the_next_token() -> None:
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Embedding(V, 8), nn.Linear(8, V)), loss="causal")
    rows = FEDERATION.test
    outputs = task.module(rows.x).detach()
    losses, stats = task.evaluate_rows(task.initial, rows.x, rows.y)
    parts = list(pairwise(rows.offsets.tolist()))
    expected = [by_torch(outputs[a:b], rows.y[a:b]) for a, b in parts]
    assert task.mean_losses(losses, rows.offsets).tolist() == pytest.approx(expected)
    likelihood = task.find_score(task.score).reduce(stats[task.score], rows.offsets)
    assert likelihood.log().neg().tolist() == pytest.approx(expected)
    even = torch.full((1, len(rows.y)), 1 / len(rows.y))
    weight = task.weighted(even, rows.y[None])[0]
    loss, _ = task.batch_loss(task.initial, Batch(rows.x, rows.y, weight))
    assert float(loss) == pytest.approx(by_torch(outputs, rows.y))
    (done,) = commonweal.run(task, FEDERATION, rounds=1, client="ditto")
    assert done.score == "likelihood"


def language_model() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="needs commonweal[text]")
    peft = pytest.importorskip("peft", reason="needs commonweal[text]")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=L, n_embd=8, n_layer=1, n_head=2, attn_implementation="eager"
    )
    lora = peft.LoraConfig(
        r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    model: nn.Module = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    return model


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, rows: TensorDataset) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids, labels = self.rows[index]
        return {"input_ids": ids, "attention_mask": (labels >= 0).long(), "labels": labels}


def test_the_loss_is_that_of_transformers() -> None:
    model = language_model().eval()
    task = Task(model, loss="causal")
    texts = Texts(DATA["c12"])
    batch = torch.utils.data.default_collate([texts[k] for k in range(len(texts))])
    with torch.no_grad():
        expected = model(**batch)
    y = batch["labels"]
    losses, _ = task.row_results(expected.logits, y)
    assert float(task.mean_losses(losses, torch.tensor([0, 12]))[0]) == pytest.approx(
        float(expected.loss)
    )


@pytest.mark.parametrize("personal", ["sgd", "ditto"])
def test_adapters_go_to_peft_and_back(personal: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs commonweal[text]")
    model = language_model()
    for name, parameter in model.named_parameters():
        if "lora_A" in name:  # FFA-LoRA
            parameter.requires_grad_(False)
    federation = Federation.from_datasets({n: Texts(rows) for n, rows in DATA.items()}, test=0.25)
    task = Task(model, loss="causal")
    assert all("lora_B" in name for name in task.names)
    *_, done = commonweal.run(task, federation, rounds=2, rule="aaggff-s", client=personal)
    chosen = "c12" if personal == "ditto" else None
    trained = done.module(client=chosen)
    trained.save_pretrained(tmp_path)  # type: ignore[operator]
    bare = language_model().unload()  # type: ignore[operator]
    loaded = peft.PeftModel.from_pretrained(bare, tmp_path).eval()
    ids = DATA["c12"].tensors[0]
    with torch.no_grad():
        assert loaded(input_ids=ids).logits.equal(trained(input_ids=ids).logits)
        assert not loaded(input_ids=ids).logits.equal(model.eval()(input_ids=ids).logits)
