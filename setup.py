"""Copies the guides into the wheel, where `commonweal docs` finds them."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithGuides(build_py):
    """The package, and the guides next to its modules."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "commonweal" / "docs"
            target.mkdir(parents=True, exist_ok=True)
            for pattern in ("*.md", "*.sbatch"):
                for path in Path("docs").glob(pattern):
                    shutil.copy(path, target)


setup(cmdclass={"build_py": WithGuides})
