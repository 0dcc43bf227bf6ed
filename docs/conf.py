"""Sphinx builds the pages: ``tox run -e docs``, or ``sphinx-build docs docs/_build/html``."""

from __future__ import annotations

import typing as t
from importlib.metadata import version as installed_version

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

from flask_sangho_webhooks import extension, testing

project = "Flask-Sangho-Webhooks"
author = "The flask-sangho-webhooks maintainers"
copyright = author
release = version = installed_version("flask-sangho-webhooks")

extensions = ["myst_parser", "pallets_sphinx_themes", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
root_doc = "index"

myst_heading_anchors = 3
myst_ref_domains = ["py", "std"]

# Of other projects: the pages are built without a network.
nitpick_ignore_regex = [
    ("py:class", r"(collections\.abc|datetime|dt|t|typing|celery|redis|sqlalchemy|werkzeug)\..*"),
    ("py:class", r"SQLAlchemy|Flask|MigrationContext"),
    # Returned, and of no use by themselves.
    ("py:class", r"WebhookBlueprint"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True

# In place of the literal of all types, which would fill half a page.
event_type: t.Any = type("EventType", (), {"__module__": "flask_sangho_webhooks"})

for module in (extension, testing):
    vars(module)["EventType"] = event_type

lexers["cron"] = TextLexer()

html_theme = "flask"
html_title = f"{project} {release}"
html_sidebars = {"**": ["localtoc.html", "relations.html", "searchbox.html"]}
html_show_sourcelink = False
