"""One input: a request as a WSGI server hands it over, well-formed or not."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import typing as t
import zlib

Environ = dict[str, t.Any]

_FILLING = b"x" * 65536


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivery:
    """What reaches the app. Text is as WSGI has it: one character a byte."""

    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    """Names may occur more than once."""

    method: str = "POST"
    path: str = "/webhook"
    length: str | None = None
    """Of ``CONTENT_LENGTH``, true or not."""

    terminated: bool = True
    """Whether the server vouches for the end of the body."""

    piece: int = 65536
    """The most that one read gives."""

    more: int = 0
    """Bytes that follow the body, which are nowhere in memory."""

    breaks: bool = False
    """Whether the connection is reset at the end of the body."""

    def environ(self) -> Environ:
        environ: Environ = {
            "REQUEST_METHOD": self.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": self.path,
            "QUERY_STRING": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": Stream(self),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": False,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }

        for name, value in self.headers:
            key = name.upper().replace("-", "_")
            key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
            environ[key] = f"{environ[key]},{value}" if key in environ else value

        if self.length is not None:
            environ["CONTENT_LENGTH"] = self.length

        if self.terminated:
            environ["wsgi.input_terminated"] = True

        return environ

    def header(self, name: str) -> str | None:
        """The values of a header, as servers join them."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return ",".join(values) if values else None

    def dump(self) -> str:
        """A line that :meth:`load` reads."""
        fields = {**dataclasses.asdict(self), "body": self.body.decode("latin-1")}
        return base64.b64encode(zlib.compress(json.dumps(fields).encode())).decode()

    @classmethod
    def load(cls, line: str) -> Delivery:
        fields = json.loads(zlib.decompress(base64.b64decode(line)))
        headers = tuple((name, value) for name, value in fields.pop("headers"))
        return cls(body=fields.pop("body").encode("latin-1"), headers=headers, **fields)


class Stream(io.RawIOBase):
    """The body in pieces, and nothing past the end that a server would wait at for ever."""

    def __init__(self, delivery: Delivery) -> None:
        self.read_bytes = 0
        self._buffer = io.BytesIO(delivery.body)
        self._more = delivery.more
        self._piece = delivery.piece
        self._breaks = delivery.breaks

    def readable(self) -> bool:
        return True

    def readinto(self, target: t.Any) -> int:
        size = min(len(target), self._piece)
        piece = self._buffer.read(size)

        if not piece and self._more:
            piece = _FILLING[: min(size, self._more)]
            self._more -= len(piece)

        if not piece and self._breaks:
            raise ConnectionResetError("reset by the fuzzer")

        target[: len(piece)] = piece
        self.read_bytes += len(piece)
        return len(piece)
