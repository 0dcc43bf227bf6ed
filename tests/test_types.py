"""An editor completes the known types. What the checkers say of user code is in ``typing/``."""

from __future__ import annotations

import collections.abc as c
import contextlib
import json
import pathlib
import subprocess
import sys
import threading
import typing as t

import pytest

from flask_sangho_webhooks.event_types import KNOWN_TYPES

SERVER = pathlib.Path(sys.executable).parent / "basedpyright-langserver"
SHOP = """\
from flask_sqlalchemy import SQLAlchemy
from flask_sangho_webhooks import SanghoWebhooks

webhooks = SanghoWebhooks(SQLAlchemy())

"""

pytestmark = pytest.mark.skipif(
    not SERVER.exists(), reason="There is no basedpyright here. Use 'tox run -e types'."
)


class Editor:
    """Speaks with a language server as an editor does."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self.to_server, self.from_server = server.stdin, server.stdout
        self.requests = 0

    def notify(self, method: str, params: dict[str, t.Any]) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: dict[str, t.Any]) -> t.Any:
        self.requests += 1
        self._send({"id": self.requests, "method": method, "params": params})

        while True:
            message = self._receive()

            if "method" not in message and message.get("id") == self.requests:
                return message["result"]

            if "method" in message and "id" in message:
                self._send({"id": message["id"], "result": self._reply(message)})

    def _reply(self, message: dict[str, t.Any]) -> t.Any:
        if message["method"] != "workspace/configuration":
            return None

        python = {"python": {"pythonPath": sys.executable}}
        return [python.get(item.get("section"), {}) for item in message["params"]["items"]]

    def _send(self, message: dict[str, t.Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.to_server.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.to_server.flush()

    def _receive(self) -> dict[str, t.Any]:
        length = 0

        while line := self.from_server.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length

        message: dict[str, t.Any] = json.loads(self.from_server.read(length))
        return message


@contextlib.contextmanager
def editor(folder: pathlib.Path) -> c.Iterator[Editor]:
    server = subprocess.Popen(
        [SERVER, "--stdio"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    guard = threading.Timer(60, server.kill)
    guard.start()

    with server:
        try:
            session = Editor(server)
            yield session
            session.ask("shutdown", {})
            session.notify("exit", {})
            server.wait(20)
        finally:
            guard.cancel()
            server.kill()


def test_known_types_are_completed(tmp_path: pathlib.Path) -> None:
    typed = '@webhooks.on("my.own", "'
    folder, file = tmp_path.as_uri(), (tmp_path / "shop.py").as_uri()
    code = SHOP + typed
    document = {"uri": file, "languageId": "python", "version": 1, "text": code}
    position = {"line": code.count("\n"), "character": len(typed)}
    capabilities = {"workspace": {"configuration": True}}
    opened = {"workspaceFolders": [{"uri": folder, "name": "shop"}], "rootUri": folder}

    with editor(tmp_path) as session:
        session.ask("initialize", {"processId": None, "capabilities": capabilities, **opened})
        session.notify("initialized", {})
        session.notify("textDocument/didOpen", {"textDocument": document})
        found = session.ask(
            "textDocument/completion", {"textDocument": {"uri": file}, "position": position}
        )

    assert {item["label"].strip('"') for item in found["items"]} == set(KNOWN_TYPES)
