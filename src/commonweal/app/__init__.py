"""The command, the page in the browser, trackers, and models that leave a run."""
