"""A headless Chromium that does what a person does, driven over plain HTTP (W3C WebDriver)."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATIENCE = 20.0  # seconds until something must have appeared


class Browser:
    """One window."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder}",
        ]
        options = {"args": arguments, "binary": shutil.which("chromium")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{session['sessionId']}"

    def _call(self, method: str, path: str, value: Any = None) -> Any:
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, url: str) -> None:
        self._call("POST", self.session + "/url", {"url": url})

    def run(self, script: str, *values: Any) -> Any:
        """The result of some JavaScript."""
        body = {"script": script, "args": list(values)}
        return self._call("POST", self.session + "/execute/sync", body)

    def find(self, css: str) -> list[str]:
        body = {"using": "css selector", "value": css}
        return [each[ELEMENT] for each in self._call("POST", self.session + "/elements", body)]

    def click(self, css: str) -> None:
        """Click the first element, once it is there."""
        self.until(lambda: bool(self.find(css)))
        self._call("POST", f"{self.session}/element/{self.find(css)[0]}/click", {})

    def type(self, css: str, text: str) -> None:
        path = f"{self.session}/element/{self.find(css)[0]}"
        self._call("POST", path + "/value", {"text": text})

    def text(self, css: str = "body") -> str:
        """What a person reads in an element; nothing where it is not there yet."""
        script = "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''"
        return str(self.run(script, css))

    def texts(self, css: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return list(self.run(script, css))

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"did not happen; the page says: {self.text()[:2000]}")
            time.sleep(0.1)

    def shows(self, text: str, css: str = "body") -> None:
        self.until(lambda: text in self.text(css))

    def errors(self) -> list[str]:
        """What the console says is wrong, scripts that the policy stopped included."""
        entries = self._call("POST", self.session + "/se/log", {"type": "browser"})
        return [each["message"] for each in entries if each["level"] in ("SEVERE", "WARNING")]

    def resize(self, width: int, height: int) -> None:
        body = {"width": width, "height": height}
        self._call("POST", self.session + "/window/rect", body)

    def media(self, kind: str) -> None:
        """Show pages as on "screen" or in "print"."""
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"media": kind}}
        self._call("POST", self.session + "/goog/cdp/execute", command)

    def scheme(self, name: str) -> None:
        """Prefer a "light" or a "dark" theme, as the system of a person does."""
        feature = {"name": "prefers-color-scheme", "value": name}
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [feature]}}
        self._call("POST", self.session + "/goog/cdp/execute", command)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(b64decode(self._call("GET", self.session + "/screenshot")))

    def close(self) -> None:
        self._call("DELETE", self.session)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile. Skips the test where there is none."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("there is no chromium and chromedriver: `make setup` as root installs them")
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        port = next(
            line.rstrip(".\n").rpartition(" ")[2]
            for line in driver.stdout
            if "started successfully on port" in line
        )
        window = Browser(f"http://127.0.0.1:{port}", folder)
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait()
        if driver.stdout is not None:
            driver.stdout.close()
