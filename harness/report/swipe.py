"""The script of ``report.html``: one picture uncovered over another, by mouse, touch or the arrow keys.

Each ``.compare`` holds two pictures, a check box that lays them over each other, and a slider that moves the edge
between them: it sets the custom property ``--at``, the style sheet does the rest. Without scripts the controls stay
hidden and the pictures stand side by side.
"""

from __future__ import annotations

SWIPE_SCRIPT = """\
for (const box of document.querySelectorAll(".compare")) {
  const controls = box.querySelector(".swipe"); if (!controls) continue;
  const [over, edge] = controls.querySelectorAll("input");
  const show = () => { box.classList.toggle("over", over.checked); box.style.setProperty("--at", edge.value + "%"); };
  over.addEventListener("change", show);
  edge.addEventListener("input", () => { over.checked = true; show(); });
  controls.hidden = false;
}
"""
