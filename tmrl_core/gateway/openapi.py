"""The description of the protocol: an OpenAPI document, and a page that shows it without other files."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from tmrl_core import __version__

_ABOUT = """\
The environment is the client: it logs in with an API key, posts observations, and receives actions.

The first message of an episode carries the observation of the reset, reward 0.0 and done false. Each further message
carries the result of the action that was answered last. A message with done true carries the last observation; its
answer is {"action": null}, and the next message begins the next episode. {"obs": null} ends the session.

Every answer is a JSON object. A refused request has a 4xx status and {"error": REASON}; it has changed nothing and may
be sent again. After 401, log in again.

The same messages, login included, can be sent over a WebSocket at /shepherd/ws/, as text (JSON) or binary
(MessagePack, where arrays of observations may be their bytes: little-endian, in the order of C). A connection remembers
its login, so session_key may be absent there. A refusal has the fields error and status.
"""

_FLAG = {"oneOf": [{"type": "boolean"}, {"type": "number", "enum": [0, 1]}]}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["obs"],
    "additionalProperties": False,
    "properties": {
        "obs": {
            "description": "Observation: a number, nested lists, or an object for a Dict space. null ends the session.",
        },
        "reward": {"type": "number", "description": "Reward of the action that was answered last."},
        "done": {**_FLAG, "description": "The episode has ended: terminated, or truncated if info says so."},
        "terminated": {**_FLAG, "description": "With truncated, instead of done: the episode has ended."},
        "truncated": {**_FLAG, "description": "The episode was cut, for example by a time limit."},
        "info": {
            "type": "object",
            "description": "Further values. `TimeLimit.truncated` true: a bare done means truncated.",
        },
        "session_key": {"type": "string", "description": "From the login. The end message may lack it."},
        "step": {
            "type": "integer",
            "description": "The client's count. A repeated number gets the same answer and records nothing.",
        },
    },
}
_ACTION: dict[str, Any] = {
    "type": "object",
    "required": ["action"],
    "properties": {
        "action": {"description": "Integer, number, list or object of the action space; null after an end."},
        "note": {"type": "string", "description": "After an end message without a session: nothing was ended."},
    },
}
_LOGIN: dict[str, Any] = {
    "type": "object",
    "required": ["apikey"],
    "additionalProperties": False,
    "properties": {"apikey": {"type": "string", "description": "API key, from the gateway's owner."}},
}
_SESSION: dict[str, Any] = {
    "type": "object",
    "required": ["ok", "session_key"],
    "properties": {"ok": {"type": "boolean"}, "session_key": {"type": "string"}},
}
_ERROR: dict[str, Any] = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_REFUSALS = {
    "400": "A field is missing or wrong; the reason names it.",
    "401": "The API key or session key is not valid, or the session has ended.",
    "409": "Another request of the session is in progress.",
    "413": "The request is too large.",
    "429": "A limit of the API key or of the address is reached.",
    "503": "The agent cannot act now; the request may be repeated.",
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document as JSON values."""
    first = {"obs": [0.1, 0.2], "reward": 0.0, "done": False, "info": {}, "session_key": "S", "step": 0}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Gateway of tmrl_core", "version": __version__, "description": _ABOUT},
        "paths": {
            "/shepherd/login_user/": {
                "post": _operation("Log in", _LOGIN, {"apikey": "K"}, _SESSION, {"ok": True, "session_key": "S"})
            },
            "/shepherd/env/": {"post": _operation("Exchange a step", _MESSAGE, first, _ACTION, {"action": 1})},
        },
    }


def _operation(summary: str, request: Any, example: Any, answer: Any, answer_example: Any) -> dict[str, Any]:
    def content(schema: Any, **example: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema, **example}}}

    return {
        "summary": summary,
        "requestBody": {"required": True, **content(request, example=example)},
        "responses": {
            "200": {"description": "Success", **content(answer, example=answer_example)},
            **{status: {"description": text, **content(_ERROR)} for status, text in _REFUSALS.items()},
        },
    }


def page(described: dict[str, Any]) -> str:
    """Return the page that shows the document."""
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in described["info"]["description"].split("\n\n"))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Gateway</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "td,th{text-align:left;vertical-align:top;padding:.2em .8em .2em 0}pre{background:#eee;padding:.5em}</style>"
        f"<h1>{escape(described['info']['title'])}</h1>{paragraphs}"
        '<p>As OpenAPI: <a href="openapi.json">openapi.json</a></p>'
        + "".join(_section(path, operation["post"]) for path, operation in described["paths"].items())
        + "</html>\n"
    )


def _section(path: str, operation: dict[str, Any]) -> str:
    request = operation["requestBody"]["content"]["application/json"]
    fields = request["schema"]["properties"].items()
    answer = operation["responses"]["200"]["content"]["application/json"]["example"]
    rows = "".join(f"<tr><th>{name}<td>{escape(field['description'])}" for name, field in fields)
    answers = "".join(
        f"<tr><th>{status}<td>{escape(found['description'])}" for status, found in operation["responses"].items()
    )
    return (
        f"<h2>POST {escape(path)}</h2><p>{escape(operation['summary'])}.</p>"
        f"<pre>{escape(json.dumps(request['example']))}\n{escape(json.dumps(answer))}</pre>"
        f"<table>{rows}</table><h3>Answers</h3><table>{answers}</table>"
    )
