"""What mkdocs does with pages beyond its plugins: cross-references of docstrings become plain names."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):<code>(~?)([\w.]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """``:class:`~pamerge.pruning.protocol.Pruner``` is shown as ``Pruner``, and ``::`` before an example as ``:``."""
    html = _ROLE.sub(lambda m: f"<code>{m[2].rpartition('.')[2] if m[1] else m[2]}</code>", html)
    return html.replace("::</p>", ":</p>")
