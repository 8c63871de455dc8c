"""The script of the flame view: a click or Enter widens a frame to the whole, Escape goes back, arrows walk.

Each ``.flame`` draws its frames by the custom properties ``--from`` and ``--span``; the script sets them. Without it
the view stands still, and every frame still tells its numbers on hovering.
"""

from __future__ import annotations

FLAME_SCRIPT = """\
for (const flame of document.querySelectorAll(".flame")) {
  const frames = [...flame.querySelectorAll(".f")], told = flame.nextElementSibling;
  const at = (f, name) => +f.style.getPropertyValue(name);
  const show = (from, span) => { flame.style.setProperty("--from", from); flame.style.setProperty("--span", span); };
  const near = (f, step) => {
    const level = at(f, "--l") + step, x = at(f, "--x"), end = x + at(f, "--w"), small = 1e-9;
    return frames.find(o => at(o, "--l") === level && (step < 0
      ? at(o, "--x") <= x + small && at(o, "--x") + at(o, "--w") >= end - small
      : at(o, "--x") >= x - small && at(o, "--x") < end - small));
  };
  const beside = (f, step) => {
    const row = frames.filter(o => at(o, "--l") === at(f, "--l"));
    return row[row.indexOf(f) + step];
  };
  flame.addEventListener("click", event => {
    const f = event.target.closest(".f"); if (!f) return;
    const is_zoomed = +flame.style.getPropertyValue("--span") === at(f, "--w");
    if (is_zoomed) show(0, 1); else show(at(f, "--x"), at(f, "--w"));
  });
  const tell = event => { const f = event.target.closest(".f"); if (f) told.textContent = f.title; };
  flame.addEventListener("mouseover", tell);
  flame.addEventListener("focusin", tell);
  flame.addEventListener("keydown", event => {
    const f = event.target.closest(".f"); if (!f) return;
    if (event.key === "Escape") show(0, 1);
    const to = { ArrowUp: () => near(f, -1), ArrowDown: () => near(f, 1), ArrowLeft: () => beside(f, -1),
      ArrowRight: () => beside(f, 1) }[event.key]?.();
    if (to) { f.tabIndex = -1; to.tabIndex = 0; to.focus(); event.preventDefault(); }
  });
}
"""
