"""What is shipped, and that it works in a virtual environment with nothing else in it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import tarfile
import typing as t
import zipfile

import pytest

from .commands import flask, write_app

ROOT = pathlib.Path(__file__).parent.parent
REVISION = "migrations/versions/sangho_0001_processed_webhook_events.py"

Source = t.Literal["wheel", "sdist", "editable"]


@dataclasses.dataclass(frozen=True)
class Build:
    """The built archives, and a virtual environment to install them in."""

    folder: pathlib.Path

    @property
    def python(self) -> str:
        # A path such as this has broken configuration files of Alembic's.
        return str(self.folder / "100% new" / "bin" / "python")

    @property
    def tools(self) -> pathlib.Path:
        return self.folder / "tools"

    def archive(self, folder: str, ending: str) -> pathlib.Path:
        (path,) = (self.folder / folder).glob(f"*{ending}")
        return path

    @property
    def wheel(self) -> pathlib.Path:
        return self.archive("dist", ".whl")

    @property
    def sdist(self) -> pathlib.Path:
        return self.archive("dist", ".tar.gz")

    @property
    def wheel_of_sdist(self) -> pathlib.Path:
        return self.archive("dist-of-sdist", ".whl")

    def run(self, *arguments: str | pathlib.Path, cwd: pathlib.Path = ROOT) -> str:
        done = self.try_to_run(*arguments, cwd=cwd)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def try_to_run(
        self, *arguments: str | pathlib.Path, cwd: pathlib.Path = ROOT
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(self.tools), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=80,
        )

    def build(self, source: pathlib.Path, target: str, folder: str) -> None:
        self.run("-m", "hatchling", "build", "-t", target, "-d", self.folder / folder, cwd=source)

    def install(self, source: Source) -> None:
        """Install the package in place of another build of it. Its dependencies are there."""
        what: dict[Source, list[str | pathlib.Path]] = {
            "wheel": [self.wheel],
            "sdist": [self.wheel_of_sdist],
            "editable": ["--no-build-isolation", "--editable", ROOT],
        }
        self.run("-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", *what[source])


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    build = Build(tmp_path_factory.mktemp("build"))
    environment = pathlib.Path(build.python).parent.parent
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=80)
    # Apart from the environment, which shall hold the package and its dependencies only.
    done = build.try_to_run("-m", "pip", "install", "-q", "--target", build.tools, "hatchling")

    if done.returncode != 0 and not os.environ.get("CI"):
        pytest.skip("There is no package index to install the build's tools from.")

    assert done.returncode == 0, done.stdout
    build.build(ROOT, "sdist", "dist")
    build.build(ROOT, "wheel", "dist")

    # Python 3.11 has it since 3.11.4.
    safely: dict[str, t.Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

    with tarfile.open(build.sdist) as archive:
        archive.extractall(build.folder, **safely)

    build.build(build.archive("", "webhooks-*"), "wheel", "dist-of-sdist")
    build.run("-m", "pip", "install", "-q", build.wheel)
    return build


def names_in_wheel(path: pathlib.Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_wheel_holds_the_package_and_nothing_else(build: Build) -> None:
    names = names_in_wheel(build.wheel)
    folders = {name.split("/")[0] for name in names}

    assert {f"flask_sangho_webhooks/{REVISION}", "flask_sangho_webhooks/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert sorted(folder.split("-")[0] for folder in folders) == [
        "_flask_sangho_webhooks_pytest.py",
        *["flask_sangho_webhooks"] * 2,
    ]
    assert not any("__pycache__" in name for name in names)


def test_sdist_holds_all_that_a_packager_needs(build: Build) -> None:
    with tarfile.open(build.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {REVISION, "flask_sangho_webhooks/py.typed", "LICENSE", "README.md", "tox.ini"} <= names
    assert f"tests/{pathlib.Path(__file__).name}" in names
    assert not any("__pycache__" in name for name in names)


def test_wheel_of_the_sdist_is_the_same(build: Build) -> None:
    assert names_in_wheel(build.wheel_of_sdist) == names_in_wheel(build.wheel)


@pytest.mark.parametrize("source", ["wheel", "sdist", "editable"])
def test_upgrade_works_where_only_the_package_is_installed(
    build: Build, source: Source, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    build.install(source)
    url = f"sqlite:///{tmp_path}/shop.sqlite3"
    done = flask(write_app(tmp_path), url, "sangho", "upgrade", python=build.python)

    assert (done.stdout, done.stderr) == (
        "The table 'processed_webhook_events' was created.\n",
        "",
    )


def test_package_does_without_its_extras(build: Build, tmp_path: pathlib.Path) -> None:
    build.install("wheel")
    check = (
        "import importlib.util, flask_sangho_webhooks;"
        "print([importlib.util.find_spec(name) for name in ('redis', 'celery', 'asgiref')])"
    )

    assert build.run("-c", check, cwd=tmp_path) == "[None, None, None]\n"
