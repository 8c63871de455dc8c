"""Sites of one's own: exact ones run, wrong ones are rejected and change nothing, mistakes are one sentence."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from diffusers import LongCatImageTransformer2DModel

from fuseproof.errors import UsageError
from fuseproof.fastpaths import UserSite, load_user_sites, mount
from fuseproof.fastpaths.kernels import gelu_tanh, layernorm_modulate

TEXT, IMAGE = 7, 12
NORM2 = "transformer_blocks.*.norm2"


@pytest.fixture
def pipe():
    torch.manual_seed(0)
    transformer = LongCatImageTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=128, num_attention_heads=1,
        joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=[16, 56, 56],
    ).eval()  # fmt: skip
    return SimpleNamespace(transformer=transformer)


@torch.no_grad()
def forwards(pipe, times=3):
    """The bits of several calls, as one request makes them: the same prompt and positions, another step each."""
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randn(1, TEXT, 8, generator=generator)
    text_ids, image_ids = torch.zeros(TEXT, 3), torch.rand(IMAGE, 3, generator=generator)
    outputs = []
    for step in range(times):
        velocity = pipe.transformer(
            hidden_states=torch.randn(1, IMAGE, 16, generator=generator), timestep=torch.tensor([1.0 - step / 8]),
            encoder_hidden_states=prompt, txt_ids=text_ids, img_ids=image_ids, return_dict=False,
        )[0]  # fmt: skip
        outputs.append(velocity)
    return torch.cat(outputs).view(torch.int32)


def layer_norm(module, x):
    return F.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)


def off_by_a_little(module, x):
    return layer_norm(module, x) * (1 + 2**-20)


def failing(module, x):
    raise RuntimeError("out of luck")


def wrong_shape(module, x):
    return layer_norm(module, x)[:, 1:]


@pytest.mark.parametrize(
    ("state", "words", "fused"),
    [
        pytest.param("fused", None, layer_norm, id="exact"),
        pytest.param("rejected", "not bit-exact", off_by_a_little, id="wrong"),
        pytest.param("rejected", "RuntimeError at first sight: out of luck", failing, id="raises"),
        pytest.param("rejected", "layout differs from eager: shape", wrong_shape, id="another shape"),
    ],
)
def test_the_result_is_exact_whatever_a_site_on_modules_does(pipe, state, words, fused):
    eager = forwards(pipe)
    with mount(pipe, user_sites=[UserSite("my_norm", fused=fused, modules=NORM2)]) as mounted:
        result = forwards(pipe)
        site = mounted.report()["sites"]["my_norm"]
    assert torch.equal(eager, result)
    assert state == site["state"]
    assert words is None or words in site["reason"]
    assert (3, 0) == (site["calls_fused"], site["calls_eager"]) or state == "rejected"


def test_a_site_inside_the_rewritten_blocks_makes_them_decline_by_name(pipe):
    with mount(pipe, user_sites=[UserSite("my_norm", fused=layer_norm, modules=NORM2)]) as mounted:
        forwards(pipe)
        sites = mounted.report()["sites"]
    assert "declined" == sites["packed_blocks"]["state"]
    assert "transformer_blocks.0.norm2" in sites["packed_blocks"]["reason"]
    assert "fused" == sites["rotary_tables"]["state"], "what is outside the blocks still runs"


def test_what_a_site_inside_the_blocks_takes_away_is_said_by_name(pipe):
    with mount(pipe, user_sites=[UserSite("my_norm", fused=off_by_a_little, modules=NORM2)]) as mounted:
        (said,) = mounted.displaced()
        declined = {name for name, site in mounted.report()["sites"].items() if "norm2" in str(site["reason"])}
    assert declined == set(said.split(" declined for the whole run")[0].split(", "))
    assert "packed_blocks" in declined
    assert "transformer_blocks.0.norm2 has a fast path of your own" in said


def test_nothing_is_said_to_be_taken_away_where_all_stay(pipe):
    own = UserSite("my_gelu", lambda x, out=None: gelu_tanh.reference(x), replaces="gelu_tanh")
    with mount(pipe, user_sites=[own]) as mounted:
        assert [] == mounted.displaced()


def test_the_guided_step_belongs_to_the_loop_and_not_to_the_blocks(pipe, monkeypatch):
    from fuseproof.fastpaths.sites import longcat_image

    monkeypatch.setattr(longcat_image, "kernels_reason", lambda weight: None)  # as on a card
    with mount(pipe, user_sites=[UserSite("my_norm", fused=layer_norm, modules=NORM2)]) as mounted:
        assert mounted.operation("guidance_step") is not None
        assert mounted.operation("packed_blocks") is None
        assert not any("guidance_step" in said for said in mounted.displaced())


def test_a_reject_reason_declines_and_is_asked_once_for_each_layout(pipe):
    asked = []

    def reason(module, x):
        asked.append(x.shape)
        return f"x has {x.shape[1]} rows"

    eager = forwards(pipe)
    with mount(pipe, user_sites=[UserSite("my_norm", layer_norm, reason, modules=NORM2)]) as mounted:
        assert torch.equal(eager, forwards(pipe))
        site = mounted.report()["sites"]["my_norm"]
    assert ("declined", f"x has {IMAGE} rows (3 call(s))") == (site["state"], site["reason"])
    assert [torch.Size([1, IMAGE, 128])] == asked


@pytest.mark.parametrize(
    ("state", "fused"),
    [
        pytest.param("fused", lambda x, out=None: gelu_tanh.reference(x), id="exact"),
        pytest.param("fused", lambda x, out: out.copy_(gelu_tanh.reference(x)), id="in place"),
        pytest.param("rejected", lambda x, out: out.copy_(F.gelu(x)), id="another gelu, in place"),
    ],
)
def test_a_site_in_a_kernels_place(pipe, state, fused):
    eager = forwards(pipe)
    with mount(pipe, user_sites=[UserSite("my_gelu", fused=fused, replaces="gelu_tanh")]) as mounted:
        result = forwards(pipe)
        sites = mounted.report()["sites"]
    assert torch.equal(eager, result)
    assert state == sites["my_gelu"]["state"]
    assert "fused" == sites["packed_blocks"]["state"]


def test_a_built_in_site_that_was_taken_over_says_by_whom(pipe):
    own = UserSite("my_norm", layernorm_modulate.reference, replaces="layernorm_modulate")
    eager = forwards(pipe)
    with mount(pipe, user_sites=[own]) as mounted:
        assert torch.equal(eager, forwards(pipe))
        sites = mounted.report()["sites"]
    assert ("replaced", "my_norm stands in") == (
        sites["layernorm_modulate"]["state"],
        sites["layernorm_modulate"]["reason"],
    )
    assert "fused" == sites["my_norm"]["state"]


def test_a_stand_in_asked_for_alone_brings_what_it_works_in(pipe):
    own = UserSite("my_gelu", lambda x, out=None: gelu_tanh.reference(x), replaces="gelu_tanh")
    with mount(pipe, sites="my_gelu", user_sites=[own]) as mounted:
        forwards(pipe)
        states = {name: site["state"] for name, site in mounted.report()["sites"].items()}
    assert ("fused", "fused", "off") == (states["my_gelu"], states["packed_blocks"], states["modulation"])


def test_a_stand_in_declines_where_the_blocks_around_it_do(pipe):
    sites = [
        UserSite("my_norm", fused=layer_norm, modules=NORM2),
        UserSite("my_gelu", lambda x, out=None: gelu_tanh.reference(x), replaces="gelu_tanh"),
    ]
    with mount(pipe, user_sites=sites) as mounted:
        forwards(pipe)
        site = mounted.report()["sites"]["my_gelu"]
    assert "declined" == site["state"]
    assert "transformer_blocks.0.norm2" in site["reason"]


@pytest.mark.parametrize("pattern", [NORM2, "context_embedder", "**.linear", "single_transformer_blocks.?.norm"])
def test_unmounting_leaves_every_module_as_it_was(pipe, pattern):
    own = UserSite("mine", fused=lambda module, *args, **kwargs: None, modules=pattern)
    mount(pipe, user_sites=[own]).unmount()
    assert [] == [name for name, module in pipe.transformer.named_modules() if "forward" in vars(module)]


def test_only_the_named_modules_are_taken(pipe):
    own = UserSite("mine", fused=layer_norm, modules="single_transformer_blocks.1.norm.norm")
    with mount(pipe, sites="mine", user_sites=[own]):
        replaced = [name for name, module in pipe.transformer.named_modules() if "forward" in vars(module)]
    assert ["single_transformer_blocks.1.norm.norm"] == replaced


@pytest.mark.parametrize(
    ("words", "sites"),
    [
        pytest.param("names no module", [{"modules": "blocks.*.norm2"}], id="unknown glob"),
        pytest.param("names no module", [{"modules": "transformer_blocks.norm2"}], id="a star for each part"),
        pytest.param("is no kernel of", [{"replaces": "layer_norm"}], id="unknown kernel"),
        pytest.param("as a built-in one is", [{"name": "modulation", "modules": NORM2}], id="name of a built-in site"),
        pytest.param("two sites are named", [{"modules": NORM2}, {"modules": "norm_out"}], id="one name twice"),
        pytest.param(
            "both replace",
            [{"name": "a", "replaces": "gelu_tanh"}, {"name": "b", "replaces": "gelu_tanh"}],
            id="one kernel twice",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_one_sentence_and_changes_nothing(pipe, words, sites):
    eager = forwards(pipe)
    own = [UserSite(**{"name": "mine", "fused": layer_norm, **site}) for site in sites]
    with pytest.raises(UsageError, match=words):
        mount(pipe, user_sites=own)
    assert torch.equal(eager, forwards(pipe))
    mount(pipe).unmount()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        pytest.param("a name has up to 64", {"name": "My Norm"}, id="name with a space"),
        pytest.param("is not auto or off", {"name": "off"}, id="reserved name"),
        pytest.param("a name has up to 64", {"name": 3}, id="no name"),
        pytest.param("fused of site 'mine' is None", {"fused": None}, id="no function"),
        pytest.param("reject_reason of site 'mine' is 'no'", {"reject_reason": "no"}, id="a text for a reason"),
        pytest.param("neither modules nor replaces", {"modules": None}, id="nowhere"),
        pytest.param("both modules and replaces", {"replaces": "gelu_tanh"}, id="two places"),
        pytest.param("modules of site 'mine' is 3", {"modules": 3}, id="no glob"),
    ],
)
def test_a_site_is_checked_where_it_is_made(words, values):
    with pytest.raises(UsageError, match=words) as raised:
        UserSite(**{"name": "mine", "fused": layer_norm, "modules": NORM2, **values})
    assert raised.value.next_step


GOOD = "from fuseproof.fastpaths import UserSite\nSITES = [UserSite('mine', fused=print, modules='norm_out')]\n"


def test_a_file_gives_its_sites_and_its_hash(tmp_path):
    file = tmp_path / "my_kernels.py"
    file.write_text(GOOD, encoding="utf-8")
    loaded = load_user_sites(file)
    assert ["mine"] == [site.name for site in loaded.sites]
    assert hashlib.sha256(GOOD.encode()).hexdigest() == loaded.sha256


@pytest.mark.parametrize(
    ("words", "text"),
    [
        pytest.param("is no Python, line 1", "SITES = [\n", id="syntax error"),
        pytest.param("fails in line 2: ZeroDivisionError", "x = 1\nx / 0\n", id="raises"),
        pytest.param("fails in line 1: ModuleNotFoundError", "import no_such_library\n", id="missing library"),
        pytest.param("fails in line 1: SystemExit", "raise SystemExit(3)\n", id="exits"),
        pytest.param("defines no SITES", "x = 1\n", id="no SITES"),
        pytest.param("with at least one", "SITES = []\n", id="empty"),
        pytest.param("SITES of .* is 3", "SITES = 3\n", id="no list"),
        pytest.param(r"SITES\[0\] of .* is 'mine'", "SITES = ['mine']\n", id="no site"),
        pytest.param("neither modules nor replaces", GOOD.replace(", modules='norm_out'", ""), id="a bad site"),
        pytest.param("two sites are named", GOOD + "SITES *= 2\n", id="duplicate"),
        pytest.param("is no Python", "x = 'a\0b'\n", id="a zero byte"),
        pytest.param("too deeply, or too long in one place", f"x = {'-' * 100_000}1\n", id="deep"),
        pytest.param("fails in line 1: RecursionError", "(lambda f: f(f))(lambda f: f(f))\n", id="recursion"),
    ],
)
def test_a_fault_in_the_file_is_one_sentence(tmp_path, words, text):
    file = tmp_path / "my_kernels.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words) as raised:
        load_user_sites(file)
    assert "\n" not in raised.value.message
    assert raised.value.next_step


@pytest.mark.parametrize(("words", "name"), [("is no file", "missing.py"), ("is a folder", ".")])
def test_a_path_that_is_no_file(tmp_path, words, name):
    with pytest.raises(UsageError, match=words) as raised:
        load_user_sites(tmp_path / name)
    assert "SITES = [UserSite(name" in raised.value.next_step


def test_what_a_file_prints_goes_to_stderr_and_what_it_switches_is_put_back(tmp_path, capsys, caplog):
    file = tmp_path / "my_kernels.py"
    file.write_text(f"import torch\nprint('noise')\ntorch.set_default_dtype(torch.float64)\n{GOOD}", encoding="utf-8")
    load_user_sites(file)
    assert ("", "noise\n") == capsys.readouterr()
    assert torch.float32 == torch.get_default_dtype()
    assert "changed torch's default dtype while it was imported" in caplog.text


@pytest.mark.parametrize(
    "pattern", ["norm_out", "transformer_blocks.*.attn.norm_*", "proj_out", "transformer_blocks.0"]
)
def test_a_site_that_writes_into_its_input_changes_no_bit_of_the_picture(pipe, pattern):
    def spoiling(module, *args, **kwargs):
        result = type(module).forward(module, *args, **kwargs)
        for tensor in (*args, *kwargs.values()):
            if isinstance(tensor, torch.Tensor):
                tensor.zero_()
        return result

    eager = forwards(pipe)
    with mount(pipe, user_sites=[UserSite("mine", fused=spoiling, modules=pattern)]) as mounted:
        assert torch.equal(eager, forwards(pipe))
        site = mounted.report()["sites"]["mine"]
    assert ("rejected", 0) == (site["state"], site["calls_fused"])
    assert "wrote into its input" in site["reason"]


@pytest.mark.parametrize(("gate", "state", "verified"), [("off", "unchecked", 0), ("observe", "observed", 1)])
def test_a_gate_that_does_not_enforce_has_a_state_of_its_own(pipe, gate, state, verified):
    own = UserSite("my_norm", fused=layer_norm, modules=NORM2)
    with mount(pipe, gate=gate, user_sites=[own]) as mounted:
        forwards(pipe)
        sites = mounted.report()["sites"]
    assert (state, 3, verified) == tuple(sites["my_norm"][name] for name in ("state", "calls_fused", "verified_keys"))
    assert state == sites["rotary_tables"]["state"], "built-in sites too"


def test_observing_every_call_of_every_site_changes_no_bit_where_none_differs(pipe):
    eager = forwards(pipe)
    with mount(pipe, gate="observe") as mounted:
        assert torch.equal(eager, forwards(pipe))
        sites = mounted.report()["sites"]
    assert "9 call(s) compared, no bit differs" == sites["packed_blocks"]["reason"]
