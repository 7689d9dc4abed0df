"""A Flower app of the quickstart's shape: a PyTorch model, a ServerApp and a ClientApp."""
