"""Multi-head attention and encoder layers against PyTorch's: outputs, weights, masks, state, training, compilation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Generator, nn
from torch.nn import functional as F

import hrf
from nn.layers import BATCH, HEADS, KEYS, LENGTH, ROUNDING, WIDTH, padding, pair, positive

WHOLE = (BATCH, LENGTH, WIDTH), (BATCH, KEYS, WIDTH), (BATCH, KEYS, WIDTH)
SHAPES = {
    "unbatched": ({}, (LENGTH, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH)),
    "length first": ({}, (LENGTH, BATCH, WIDTH), (KEYS, BATCH, WIDTH), (KEYS, BATCH, WIDTH)),
    "no bias": ({"batch_first": True, "bias": False}, *WHOLE),
    "other widths": (
        {"batch_first": True, "kdim": 9, "vdim": 8},
        WHOLE[0],
        (BATCH, KEYS, 9),
        (BATCH, KEYS, 8),
    ),
}


@pytest.mark.parametrize("masked", [None, "booleans", "numbers"])
@pytest.mark.parametrize("case", SHAPES)
def test_agrees_with_pytorch(case, masked, with_exact):
    options, *shapes = SHAPES[case]
    reference, layer = pair(**options)
    inputs = [torch.randn(shape) for shape in shapes]
    mask = None
    if masked is not None:
        mask = padding()[0] if case == "unbatched" else padding()
        if masked == "numbers":
            mask = torch.zeros(mask.shape).masked_fill(mask, -torch.inf)
    for average in (True, False):
        expected, weights = reference(*inputs, key_padding_mask=mask, average_attn_weights=average)
        with_weights = {"need_weights": True, "average_attn_weights": average}
        output, estimated = layer(*inputs, key_padding_mask=mask, **with_weights)
        torch.testing.assert_close(output, expected, **ROUNDING)
        torch.testing.assert_close(estimated, weights, **ROUNDING)
    output, nothing = layer(*inputs, key_padding_mask=mask)
    assert nothing is None
    torch.testing.assert_close(output, expected, **ROUNDING)


def test_causal_mask_in_every_form(with_exact):
    reference, layer = pair(batch_first=True)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=x.dtype)
    expected, _ = reference(x, x, x, attn_mask=causal)
    for mask in (causal.isneginf(), causal, causal.expand(BATCH * HEADS, -1, -1)):
        for hint in (True, False):
            output, _ = layer(x, x, x, attn_mask=mask, is_causal=hint)
            torch.testing.assert_close(output, expected, **ROUNDING)
    torch.testing.assert_close(layer(x, x, x, is_causal=True)[0], expected, **ROUNDING)


@pytest.mark.parametrize("need_weights", [False, True])
def test_calls_attention_with_its_map(need_weights):
    _, layer = pair(batch_first=True)
    x, mask = torch.randn(BATCH, KEYS, WIDTH), padding()
    projected = F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    q, k, v = (u.unflatten(-1, (HEADS, -1)).transpose(1, 2) for u in projected)
    mixed = hrf.attention(q, k, v, layer.feature_map, is_causal=True, key_padding_mask=mask)
    expected = layer.out_proj(mixed.transpose(1, 2).flatten(-2))
    output, _ = layer(x, x, x, key_padding_mask=mask, is_causal=True, need_weights=need_weights)
    # Weights come in another order of sums.
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)


def test_weights_are_the_normalised_estimates():
    _, layer = pair(batch_first=True)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    _, weights = layer(x, x, x, need_weights=True, average_attn_weights=False)
    q, k, _ = layer._projected(x, x, x)
    root = (WIDTH // HEADS) ** -0.25
    estimates = layer.feature_map.estimate(q * root, k * root)
    torch.testing.assert_close(weights, estimates / estimates.sum(-1, keepdim=True), **ROUNDING)


def test_normalised_logits_are_cosines(with_exact):
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, normalize=True)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    _, weights = layer(x, x, x, need_weights=True, average_attn_weights=False)
    q, k, _ = layer._projected(x, x, x)
    cosines = F.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    torch.testing.assert_close(weights, cosines.softmax(-1), **ROUNDING)


def test_masks_that_cannot_be_honoured_are_refused():
    layer, x = hrf.nn.MultiheadAttention(WIDTH, HEADS), torch.randn(LENGTH, WIDTH)
    window = nn.Transformer.generate_square_subsequent_mask(LENGTH).T
    for mask, says in (
        (window, r"attn_mask of .* and shape \(5, 5\) .* is not causal over 5 queries"),
        (torch.ones(3, 3).bool().triu(1), r"attn_mask has shape .*; expected \(5, 5\), or \(3, 5, 5\)"),
        (
            torch.ones(HEADS + 1, LENGTH, LENGTH).bool().triu(1),
            r"has shape .*; expected \(5, 5\), or \(3, 5, 5\)",
        ),
        (torch.ones(LENGTH).bool(), r"attn_mask has shape .*; expected \(5, 5\), or \(3, 5, 5\)"),
        (torch.randn(LENGTH, LENGTH), r"attn_mask of torch.float64 .*has values besides 0 and −inf"),
    ):
        for hint in (True, False):
            with pytest.raises(ValueError, match=says):
                layer(x, x, x, attn_mask=mask, is_causal=hint)
    with pytest.raises(ValueError, match=r"key_padding_mask of torch.float64 has values besides"):
        layer(x, x, x, key_padding_mask=torch.randn(LENGTH))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"add_bias_kv": True}, ValueError, "add_bias_kv"),
        ({"feature_map": "linear"}, ValueError, "feature_map is 'linear'; expected one of positive, angular"),
        ({"feature_map": hrf.Positive(5, n_projections=4)}, ValueError, "expected dim=4, heads=3"),
        ({"feature_map": 3}, TypeError, r"feature_map is or returned .*; expected one of positive"),
        ({"feature_map": lambda dim, heads, generator: "a map"}, TypeError, "feature_map is or returned"),
        ({"redraw_every": 0}, ValueError, "redraw_every is 0"),
        ({"attention": "summarised"}, TypeError, "expected a hrf"),
        ({"generator": 0}, TypeError, r"^generator is 0; expected a torch\.Generator .*seed=0\)$"),
        ({"generator": torch.Generator(), "seed": 0}, ValueError, "generator and seed are both given"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(options, error, says):
    with pytest.raises(error, match=says):
        hrf.nn.MultiheadAttention(WIDTH, HEADS, **options)


@pytest.mark.parametrize(
    ("mode", "norm_first", "batch_first"),
    [("train", True, True), ("eval", False, True), ("inference", False, True), ("inference", True, False)],
)
def test_encoder_agrees_with_pytorch(mode, norm_first, batch_first, with_exact):
    options = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first, "activation": "gelu"}
    reference, ours = (
        nn.TransformerEncoder(cls(WIDTH, 2, 16, **options), num_layers=2, enable_nested_tensor=False)
        for cls in (nn.TransformerEncoderLayer, hrf.nn.TransformerEncoderLayer)
    )
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(reference.state_dict())
    x = torch.randn(BATCH, KEYS, WIDTH) if batch_first else torch.randn(KEYS, BATCH, WIDTH)
    mask, causal = padding(), nn.Transformer.generate_square_subsequent_mask(KEYS)
    read = ~mask if batch_first else ~mask.T  # PyTorch's fast path sets padded rows to 0
    for model in (reference, ours):
        model.train(mode == "train")
    with torch.inference_mode(mode == "inference"):
        expected, output = (m(x, src_key_padding_mask=mask)[read] for m in (reference, ours))
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)  # two layers with norms
        expected, output = (m(x, mask=causal, is_causal=True) for m in (reference, ours))
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("nested", [True, False])
def test_pytorch_does_not_pass_by_our_attention(nested):
    """Its encoder layers would compute exact attention from the parameters alone in inference."""
    plain = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    plain.self_attn = hrf.nn.MultiheadAttention.from_torch(plain.self_attn, feature_map=positive)
    own = hrf.nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, feature_map=positive)
    x, mask = torch.randn(BATCH, KEYS, WIDTH), torch.arange(KEYS) >= torch.tensor([[KEYS], [4]])
    for layer in (plain, own):
        layer.eval()
        expected = layer(x, src_key_padding_mask=mask)  # with autograd there is no fast path
        with torch.inference_mode():
            torch.testing.assert_close(layer(x, src_key_padding_mask=mask), expected, **ROUNDING)
        if nested:
            with pytest.warns(UserWarning, match="enable_nested_tensor"):
                encoder = nn.TransformerEncoder(layer, num_layers=1)
        else:
            encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        with torch.inference_mode():
            output = encoder.eval()(x, src_key_padding_mask=mask)
        torch.testing.assert_close(output, expected, **ROUNDING)


def summarised_layers(tolerance):
    torch.manual_seed(0)
    exact = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64).eval()
    method = hrf.SummarisedAttention(4, 4, tolerance)
    return exact, hrf.nn.MultiheadAttention.from_torch(exact, attention=method)


def test_without_tolerance_it_is_the_exact_layer():
    exact, mine = summarised_layers(1e-30)
    x, ignore = torch.randn(2, 20, 16), torch.arange(20) >= torch.tensor([[20], [13]])
    for query in (x, x[:, :9]):
        expected, _ = exact(query, x, x, key_padding_mask=ignore, need_weights=False)
        received, _ = mine(query, x, x, key_padding_mask=ignore)
        assert (received - expected)[~ignore[:, : query.shape[1]]].abs().max() <= 1e-10


def test_padding_of_self_attention_is_in_no_group():
    _, mine = summarised_layers(1.0)
    x, ignore = torch.randn(1, 20, 16, dtype=torch.float64), torch.arange(20)[None] >= 15
    loud = x.masked_fill(ignore[..., None], 1e3)
    outputs = [mine(u, u, u, key_padding_mask=ignore)[0][:, :15] for u in (x, loud)]
    assert torch.equal(*outputs)


def test_an_encoder_layer_hands_it_on():
    method = hrf.SummarisedAttention(tolerance=0.0)
    layer = hrf.nn.TransformerEncoderLayer(16, 2, batch_first=True, attention=method).eval()
    exact = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    exact.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if name in exact.state_dict()}
    )
    x = torch.randn(1, 300, 16)
    assert layer.self_attn.attention is method
    assert torch.allclose(layer(x), exact(x), atol=1e-5)


@pytest.mark.parametrize("first", [True, False])
def test_causal_summaries_of_layers(first, monkeypatch):
    """Exact without tolerance; summaries of blocks else, which a later token never changes."""
    monkeypatch.setattr("hrf._attention.summarised.engine.BASE", 64)
    torch.manual_seed(0)
    exact = nn.MultiheadAttention(16, 2, batch_first=first, dtype=torch.float64).eval()
    x, mask = torch.randn(2, 300, 16, dtype=torch.double), torch.ones(300, 300, dtype=torch.bool).triu(1)
    x = x if first else x.transpose(0, 1)
    expected, _ = exact(x, x, x, attn_mask=mask, need_weights=False)
    for tolerance in (0.0, 1.0):
        mine = hrf.nn.MultiheadAttention.from_torch(
            exact, attention=hrf.SummarisedAttention(tolerance=tolerance)
        )
        received, _ = mine(x, x, x, is_causal=True)
        same, _ = mine(x, x, x, attn_mask=mask)
        assert torch.equal(received, same)
        error = (received - expected).norm() / expected.norm()
        assert error <= 1e-10 if tolerance == 0 else 1e-10 < error < 0.1
        later = x.clone()
        later.narrow(1 if first else 0, 200, 100).mul_(-3)
        changed, _ = mine(later, later, later, is_causal=True)
        early = [u.narrow(1 if first else 0, 0, 200) for u in (changed, received)]
        torch.testing.assert_close(*early, rtol=0, atol=1e-12)  # projections of other rows may round apart


def test_padding_of_causal_layers_is_in_no_block(monkeypatch):
    monkeypatch.setattr("hrf._attention.summarised.engine.BASE", 64)
    torch.manual_seed(0)
    mine = hrf.nn.MultiheadAttention(16, 2, batch_first=True, attention=hrf.SummarisedAttention()).double()
    x, ignore = torch.randn(2, 300, 16, dtype=torch.double), torch.arange(300) < torch.tensor([[0], [90]])
    received, _ = mine(x, x, x, key_padding_mask=ignore, is_causal=True)
    alone, _ = mine(*[x[1:, 90:]] * 3, is_causal=True)
    assert (received[1:, 90:] - alone).abs().max() <= 1e-10


def test_a_causal_encoder_layer_hands_it_on():
    layer = hrf.nn.TransformerEncoderLayer(
        16, 2, batch_first=True, attention=hrf.SummarisedAttention(tolerance=0.0)
    ).eval()
    exact = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    exact.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if name in exact.state_dict()}
    )
    x, mask = torch.randn(1, 300, 16), nn.Transformer.generate_square_subsequent_mask(300)
    assert torch.allclose(
        layer(x, src_mask=mask, is_causal=True), exact(x, src_mask=mask, is_causal=True), atol=1e-5
    )


# Parameters, maps and state.


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def test_state_dict_of_pytorch_leaves_the_map_alone():
    reference, _ = pair()
    model = Model(hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive))
    omega = model.layer.feature_map.projection.omega.clone()
    model.load_state_dict(Model(reference).state_dict())
    assert torch.equal(model.layer.in_proj_weight, reference.in_proj_weight)
    assert torch.equal(model.layer.feature_map.projection.omega, omega)


def test_own_state_dict_brings_map_and_count():
    first, second = (hrf.nn.MultiheadAttention(WIDTH, HEADS, redraw_every=2) for _ in range(2))
    x = torch.randn(LENGTH, WIDTH)
    for _ in range(3):
        first(x, x, x)
    second.load_state_dict(first.state_dict())
    assert second.passes == 3
    assert torch.equal(second(x, x, x)[0], first(x, x, x)[0])


def test_a_state_dict_with_part_of_a_map_is_refused():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive)
    state = layer.state_dict()
    del state["feature_map.projection.omega"]
    with pytest.raises(RuntimeError, match="omega"):
        layer.load_state_dict(state)


def test_conversion_keeps_what_a_module_is():
    options = {"dropout": 0.25, "kdim": 9, "batch_first": True, "dtype": torch.bfloat16}
    reference = nn.MultiheadAttention(WIDTH, HEADS, **options)
    reference.eval().out_proj.requires_grad_(False)
    layer = hrf.nn.MultiheadAttention.from_torch(reference, feature_map="positive")
    assert (layer.dropout, layer.kdim, layer.batch_first, layer.training) == (0.25, 9, True, False)
    learned = [{n: p.requires_grad for n, p in made.named_parameters()} for made in (layer, reference)]
    assert learned[0] == learned[1]
    assert layer.k_proj_weight.dtype == torch.bfloat16
    assert layer.feature_map.projection.omega.dtype == torch.float32  # features need it
    x, y = torch.randn(1, LENGTH, WIDTH).bfloat16(), torch.randn(1, KEYS, 9).bfloat16()
    assert layer(x, y, torch.randn(1, KEYS, WIDTH).bfloat16())[0].dtype == torch.bfloat16


# Training: gradients, redraws, dropout.


def test_every_parameter_gets_a_gradient():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, bias=True, dropout=0.1, redraw_every=1)
    x = torch.randn(LENGTH, WIDTH)
    layer(x, x, x)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("widths", [{}, {"kdim": 9, "vdim": 8}])
def test_parameters_can_be_drawn_again(widths):
    layers = pair(**widths)
    for layer in layers:
        torch.manual_seed(1)
        layer._reset_parameters()
    for name, parameter in layers[0].named_parameters():
        assert torch.equal(layers[1].get_parameter(name), parameter)


def test_redraws_are_counted_in_training_only():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive, redraw_every=2)
    x, seen = torch.randn(LENGTH, WIDTH), []
    for training in (True, False, True, False, True, True, True):
        layer.train(training)
        layer(x, x, x)
        seen.append(layer.feature_map.projection.omega.clone())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, True, True, False, True, False]  # after passes 2 and 4 in training
    assert layer.passes == 5


def test_gradients_are_those_of_the_map_that_was_used():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive, redraw_every=1)
    x = torch.randn(LENGTH, WIDTH)
    output, _ = layer(x, x, x)
    expected = torch.autograd.grad(output.sum(), layer.in_proj_weight, retain_graph=True)
    layer(x, x, x)  # with a new ω
    torch.testing.assert_close(torch.autograd.grad(output.sum(), layer.in_proj_weight), expected, **ROUNDING)


def test_dropout_drops_keys_in_training_only(monkeypatch):
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, feature_map=positive)
    x = torch.randn(LENGTH, WIDTH)
    kept = torch.tensor([2.0, 0, 2, 0, 2]).expand(HEADS, -1).unsqueeze(-1)
    monkeypatch.setattr(F, "dropout", lambda ones, p: ones * kept)
    dropped, _ = layer(x, x, x)
    q, k, v = layer._projected(x, x, x)
    mixed = hrf.attention(q, k, v * kept, layer.feature_map)
    torch.testing.assert_close(dropped, layer.out_proj(mixed.transpose(-3, -2).flatten(-2)), **ROUNDING)
    layer.eval()
    mixed = hrf.attention(q, k, v, layer.feature_map)
    output, _ = layer(x, x, x)
    torch.testing.assert_close(output, layer.out_proj(mixed.transpose(-3, -2).flatten(-2)), **ROUNDING)


@pytest.mark.stat
def test_dropout_keeps_the_mean():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3, feature_map=positive)
    x, n = torch.randn(LENGTH, WIDTH), 2000
    many = x.unsqueeze(1).expand(-1, n, -1)
    outputs = layer(many, many, many)[0].detach()
    error = outputs.std(1) / n**0.5
    assert ((outputs.mean(1) - layer.eval()(x, x, x)[0]).abs() < 5 * error).all()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, where it hands over
def test_compiled_layers_redraw():
    layer = hrf.nn.MultiheadAttention(8, 2, batch_first=True, redraw_every=2, seed=0)
    compiled = torch.compile(layer, backend="eager")
    x, omegas, outputs = torch.randn(1, 5, 8), [], []
    for _ in range(7):
        output, _ = compiled(x, x, x)
        output.sum().backward()
        omegas.append(layer.feature_map.projection.omega.clone())
        outputs.append(output.detach())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(omegas)]
    assert same == [True, False, True, False, True, False]
    assert torch.equal(outputs[-1], layer.eval()(x, x, x)[0])
    torch.compiler.reset()


# Layers compiled to one graph.


FUTURE = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)


def assert_compiled_is_the_same(layer, call, backend="aot_eager"):
    """Outputs and gradients of input, parameters and ω."""
    omega = [p.omega.requires_grad_() for p in layer.modules() if isinstance(p, hrf.Projections)]
    x, received = torch.randn(BATCH, KEYS, WIDTH, requires_grad=True), []
    for function in (call, torch.compile(call, backend=backend, fullgraph=True)):
        output = function(x)
        gradients = torch.autograd.grad(
            output.square().sum(), [x, *layer.parameters(), *omega], allow_unused=True
        )
        received.append([output.detach(), *(g for g in gradients if g is not None)])
    torch.compiler.reset()
    for mine, theirs in zip(*received, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9 * float(theirs.abs().max()))


@pytest.mark.parametrize(
    ("feature_map", "options"),
    [
        ("positive", {"attn_mask": FUTURE}),
        ("angular", {"key_padding_mask": padding()}),
        ("angular", {"is_causal": True}),
        ("trigonometric", {"need_weights": True}),
    ],
)
def test_one_graph_of_attention(feature_map, options):
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, feature_map=feature_map, seed=0)
    assert_compiled_is_the_same(layer, lambda x: layer(x, x, x, **options)[0])


def test_one_graph_of_an_encoder_layer():
    layer = hrf.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, dropout=0.0, seed=0)
    assert_compiled_is_the_same(layer, lambda x: layer(x, src_key_padding_mask=padding()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_one_graph_by_the_default_compiler():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, seed=0)
    assert_compiled_is_the_same(layer, lambda x: layer(x, x, x, is_causal=True)[0], backend="inductor")


def test_layers_alike_share_a_graph():
    """Handles of maps are tensors: a number would mean a graph per layer, up to the compiler's limit."""
    layers = [hrf.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, seed=seed) for seed in range(3)]
    x, graphs = torch.randn(BATCH, KEYS, WIDTH), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda layer, x: layer(x, x, x)[0], backend=backend, fullgraph=True)
    for layer in layers:
        assert torch.equal(compiled(layer, x), layer(x, x, x)[0])
    torch.compiler.reset()
    assert len(graphs) == 1


# Arguments.


LAYERS = [hrf.nn.MultiheadAttention, hrf.nn.TransformerEncoderLayer]


def omega(layer):
    attention = getattr(layer, "self_attn", layer)
    return attention.feature_map.projection.omega


@pytest.mark.parametrize("kind", LAYERS)
def test_a_seed_stands_for_a_generator(kind):
    expected = omega(kind(WIDTH, HEADS, generator=Generator().manual_seed(3)))
    assert omega(kind(WIDTH, HEADS, seed=3)).equal(expected)
    assert not omega(kind(WIDTH, HEADS, seed=4)).equal(expected)
    reference = nn.MultiheadAttention(WIDTH, HEADS)
    assert omega(hrf.nn.MultiheadAttention.from_torch(reference, seed=3)).equal(expected)


def test_arrays_are_no_tensors():
    x = torch.randn(LENGTH, WIDTH)
    masks = {"key_padding_mask": np.zeros(LENGTH, bool), "attn_mask": np.ones((LENGTH, LENGTH))}
    for name, wrong in {"query": x.numpy(), "key": x.numpy(), "value": x.numpy(), **masks}.items():
        with pytest.raises(TypeError, match=f"^{name} is of type ndarray; expected a tensor"):
            hrf.nn.MultiheadAttention(WIDTH, HEADS)(**{"query": x, "key": x, "value": x, name: wrong})
