"""Sphinx settings of the documentation site. Build it with `scripts/docs`; `site_hooks.py` has the parts of our own."""

import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "src")]

import dibs  # noqa: E402  (from this checkout)

_about = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "dibs"
author = copyright = "the dibs authors"
version = release = dibs.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "site_hooks",
]
exclude_patterns = ["_build"]
repository_url = _about["urls"]["Source"]
llms_summary = _about["description"]

# Markdown. The anchors of headings are those that GitHub makes.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 6
suppress_warnings = ["myst.header"]  # a changelog may begin below level 1

# The reference, from docstrings.
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseException, DibsError, Lock, dict, tuple",
    "member-order": "bysource",
}
# Sphinx cannot show an alias inside a union by its name. These two aliases are never part of one.
autodoc_type_aliases = {alias: alias for alias in ("Target", "Timeout")}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_use_rtype = False
# --nitpicky: a public name of dibs that a docstring refers to must be in the reference. Other names are not links.
nitpick_ignore_regex = [("py:.*", r"(?!dibs\.(aio\.)?[A-Za-z_]+$).*")]

html_theme = "furo"
html_title = f"dibs {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"source_repository": repository_url, "source_branch": "main", "source_directory": "docs/"}
html_baseurl = _about["urls"]["Documentation"]
html_last_updated_fmt = None
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
