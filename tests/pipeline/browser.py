"""A page in headless Chromium: what it reports, how wide it is, and how bright."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
]
HEIGHT = 900
# Our pages run no script and let none run; this one is the test's, to learn how wide the page has become.
POLICY = r'<meta http-equiv="Content-Security-Policy"[^>]*>'
RULER = "<script>document.title = 'over ' + (document.documentElement.scrollWidth - innerWidth)</script></body>"

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@dataclass
class Drawn:
    console: str  # what the browser had to say
    size: tuple[int, int]
    over: int  # pixels by which it is wider than the window, and scrolls sideways
    brightness: int  # mean, 0 to 255


def draw(source: str, folder: Path, width: int, scheme: str) -> Drawn:
    """The page `source` with its folds open, as a reader who prefers `scheme` (light or dark) sees it."""
    from PIL import Image

    page, ruled, picture = folder / "page.html", folder / "ruled.html", folder / "page.png"
    page.write_text(source.replace("<details>", "<details open>"))
    ruled.write_text(re.sub(POLICY, "", page.read_text()).replace("</body>", RULER))
    window = [
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},{HEIGHT}",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
    ]
    shot, dump = (
        subprocess.run([CHROMIUM, *FLAGS, *window, *task], capture_output=True, text=True, timeout=120)
        for task in ((f"--screenshot={picture}", page.as_uri()), ("--dump-dom", ruled.as_uri()))
    )
    assert shot.returncode == 0 and dump.returncode == 0, shot.stderr + dump.stderr
    measured = re.search(r"<title>over (-?\d+)</title>", dump.stdout)
    assert measured is not None
    with Image.open(picture) as image:
        shade = image.convert("L").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
        return Drawn(shot.stderr, image.size, int(measured.group(1)), shade)


def assert_drawn(source: str, folder: Path, width: int, scheme: str) -> None:
    """No error, no scrolling sideways, and light or dark as the reader has it."""
    drawn = draw(source, folder, width, scheme)
    assert "CONSOLE" not in drawn.console
    assert drawn.size == (width, HEIGHT)
    assert drawn.over <= 0
    assert drawn.brightness > 200 if scheme == "light" else drawn.brightness < 80
