"""The main part of a report shows every word of a usual campaign, directional ones first, and reads as plain text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuseproof.harness.campaign.arm_lineage import ArmLineage
from fuseproof.harness.escape import markdown_code, markdown_text
from fuseproof.harness.report import render_markdown
from fuseproof.harness.report.arm_sources import source_rows
from fuseproof.harness.report.layout import MAIN_LIMIT_BYTES, main_part
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.test_report_claims import analysed, section

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SAME = ((10.0, 10.0, 10.01, 10.01), (10.0, 10.01, 10.0, 10.0))
FLAGS = "--fastpaths=auto " + " ".join(f"--negative-prompt 'not this picture number {index}'" for index in range(12))


def three_modes(folder: Path, cells: int) -> CampaignBuilder:
    """Cells of two equal arms and a faster one at the end, with so much to say that the first layouts are too long."""
    names = [f"a-long-name-of-a-workload-{index}" for index in range(cells)]
    builder = CampaignBuilder(folder, cells=names, candidate_flags=FLAGS)
    for name in names:
        times = FASTER if name == names[-1] else SAME
        for number, row in enumerate(times, start=1):
            runs = [
                Run(
                    worker_s=seconds,
                    denoise_s=seconds - 1,
                    client_s=seconds + 1,
                    save_s=0.5,
                    load_s=3,
                    prompts=("x" * 400,),
                )
                for seconds in row
            ]
            builder.block(runs, cell=name, block=number)
    return builder


@pytest.mark.parametrize("cells", [1, 3, 8])
def test_all_cells_of_a_usual_campaign_are_in_both_tables(tmp_path: Path, cells: int) -> None:
    main = main_part(render_markdown(analysed(three_modes(tmp_path / "c", cells))))
    for title in ("Result", "Output check"):
        listed = re.findall(r"^\| (a-long-name-of-a-workload-\d)[^-]", section(main, title), re.MULTILINE)
        assert set(listed) == {f"a-long-name-of-a-workload-{index}" for index in range(cells)}, title
        assert f"a-long-name-of-a-workload-{cells - 1}" == listed[0], "the FASTER cell comes first"
    assert "more cell" not in main
    assert len(main.encode()) < MAIN_LIMIT_BYTES


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("--fastpaths=off against --fastpaths=auto", "--fastpaths=off against --fastpaths=auto"),
        ("-5 % latency", "-5 % latency"),
        ("&#45; item", "- item"),
        ("&#45;--", "---"),
        ("&#45; - -", "- - -"),
        ("&#43; item", "+ item"),
        ("&#62; quote", "> quote"),
        ("&#35; heading", "# heading"),
        ("@&#8203;torvalds and #&#8203;1, GH-&#8203;1", "@torvalds and #1, GH-1"),
        ("owner/repo#&#8203;12 (@&#8203;a-b)", "owner/repo#12 (@a-b)"),
        ("me@example.org, # of runs, @ 5 s", "me@example.org, # of runs, @ 5 s"),
        ("&#38;#&#8203;35; &#124;", "&#35; |"),
    ],
)
def test_only_what_markdown_would_take_is_escaped(expected: str, text: str) -> None:
    assert expected == markdown_text(text)


def test_what_stands_in_code_is_as_it_was() -> None:
    """GitHub notifies nobody who is named in code, and a command is there to be copied."""
    assert ("`@torvalds #1`", "<code>@torvalds &#124; #1</code>") == (
        markdown_code("@torvalds #1"),
        markdown_code("@torvalds | #1"),
    )


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("HEAD~1 against HEAD", "HEAD~1 against HEAD"),
        ("HEAD&#126;1 against HEAD&#126;2", "HEAD~1 against HEAD~2"),
        ("&#126;&#126;gone", "~~gone"),
        ("~/models and HEAD&#126;1", "~/models and HEAD~1"),
    ],
)
def test_one_tilde_alone_is_readable_and_two_would_strike_out(expected: str, text: str) -> None:
    assert expected == markdown_text(text, is_alone=True)
    assert "~" not in markdown_text(text).replace("~/", "")


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("`fuseproof/__init__.py`", "fuseproof/__init__.py"),
        ("`HEAD~1`", "HEAD~1"),
        ("`a b`", "a\nb"),
        ("<code>a &#124; b</code>", "a | b"),
        ("<code>&#96;rm&#96;</code>", "`rm`"),
        ("<code>&#60;img src=x></code>", "<img src=x>"),
        ("<code> x</code>", " x"),
        ("<code></code>", ""),
    ],
)
def test_code_is_readable_as_it_stands_where_nothing_can_break_out(expected: str, text: str) -> None:
    assert expected == markdown_code(text)


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("/srv/work/main", " of a local repository (its folder is called 'main')"),
        ("~/main", " of a local repository (its folder is called 'main')"),
        ("file:///srv/main", " of a local repository (its folder is called 'main')"),
        ("https://example.org/x/main", " of https://example.org/x/main"),
        ("git@example.org:x/main.git", " of git@example.org:x/main.git"),
    ],
)
def test_folder_of_a_repository_is_not_read_as_a_branch(remote: str, shown: str) -> None:
    rows = source_rows({"A": ArmLineage(ref="HEAD", commit="c" * 40, remote=remote)}, 240, ("A",))
    assert shown in rows[0][1]
