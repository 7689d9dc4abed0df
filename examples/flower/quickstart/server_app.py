"""The ServerApp, as Flower's quickstart has it, but for one line (and its import)."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from commonweal.flower import FairStrategy
from quickstart.task import net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = int(context.run_config["num-server-rounds"])
    lr = float(context.run_config["lr"])
    arrays = ArrayRecord(net().state_dict())

    strategy = FairStrategy("aaggff-s")  # instead of: strategy = FedAvg()

    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=rounds,
    )
