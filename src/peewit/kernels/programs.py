"""Triton kernels for Jacobians with several positions: products of gradients and inputs that never leave the chip.

`J[k, o, i] = sum_t grad[k, t, o] act[t, i]` has a number for every output and weight; its squares and inner products
are all that anyone asks for. Each kernel makes a tile of it on the tensor cores, uses it and forgets it. The operands
come in 16 bits, in one part, or in two whose sum is the number to 22 bits; sums are in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _halves(value, high, low, at, mask, TWO: tl.constexpr):
    """float32 -> 16 bits; what is lost goes to `low`."""
    head = value.to(high.dtype.element_ty)
    tl.store(high + at, head, mask=mask)
    if TWO:
        tl.store(low + at, (value - head.to(tl.float32)).to(high.dtype.element_ty), mask=mask)


@triton.jit
def _power(largest, top, most: tl.constexpr):
    """Powers of two, `2^-most` to `2^most`, that bring numbers just below `2^top`; one where none does."""
    good = (largest > 0) & (largest < float("inf"))
    exponent = top - tl.ceil(tl.log2(tl.where(good, largest, 1.0)))
    return tl.where(good, tl.exp2(tl.minimum(tl.maximum(exponent, -most), most)), 1.0)


@triton.jit(do_not_specialize=["units", "examples", "chunks"])
def _split(
    x, high, low, scale, units, inner, examples, chunks, TWO: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    """float32 -> 16 bits, times a power of two per example, which is the number of a stretch of `inner` numbers."""
    unit = (tl.program_id(0) // chunks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = (tl.program_id(0) % chunks).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    mask = (unit < units)[:, None] & (at < inner)[None, :]
    index = unit[:, None] * inner + at[None, :]
    factor = tl.load(scale + unit % examples, mask=unit < units, other=1.0)
    _halves(tl.load(x + index, mask=mask, other=0.0) * factor[:, None], high, low, index, mask, TWO)


@triton.jit(do_not_specialize=["units", "top"])
def _split_rows(
    x, high, low, scale, units, inner, top, TWO: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """The same for rows that fit into one program, which finds their powers of two itself."""
    unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    mask = (unit < units)[:, None] & (at < inner)[None, :]
    index = unit[:, None] * inner + at[None, :]
    value = tl.load(x + index, mask=mask, other=0.0)
    # A row with NaN has no largest number: the others of its row are of no use then.
    factor = _power(tl.max(tl.abs(value), 1), top, 40.0)
    tl.store(scale + unit, factor, mask=unit < units)
    _halves(value * factor[:, None], high, low, index, mask, TWO)


@triton.jit(do_not_specialize=["number", "top"])
def _scale(largest, scale, number, top, BLOCK: tl.constexpr):
    """Powers of two that bring numbers just below `2^top`."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < number
    tl.store(scale + index, _power(tl.load(largest + index, mask=mask, other=1.0), top, 40.0), mask=mask)


@triton.jit
def _tile(
    grad, grad_low, act, act_low, k, o, i, K, T, O, I, grad_k, grad_t, grad_o, act_t, act_i, TWO: tl.constexpr,
    ROWS: tl.constexpr, IB: tl.constexpr, TB: tl.constexpr,
):  # fmt: skip
    """(ROWS, IB): the Jacobian of one example for rows (k, o) and columns i."""
    tile = tl.zeros((ROWS, IB), dtype=tl.float32)
    rows = ((k < K) & (o < O))[:, None]
    grad_at = k.to(tl.int64)[:, None] * grad_k + o.to(tl.int64)[:, None] * grad_o
    act_at = i.to(tl.int64)[None, :] * act_i
    columns = (i < I)[None, :]
    for start in range(0, T, TB):
        t = (start + tl.arange(0, TB)).to(tl.int64)
        inside = t < T
        left_at = grad_at + t[None, :] * grad_t
        right_at = act_at + t[:, None] * act_t
        left_mask = rows & inside[None, :]
        right_mask = columns & inside[:, None]
        left = tl.load(grad + left_at, mask=left_mask, other=0.0)
        right = tl.load(act + right_at, mask=right_mask, other=0.0)
        tile = tl.dot(left, right, tile)
        if TWO:
            tile = tl.dot(tl.load(grad_low + left_at, mask=left_mask, other=0.0), right, tile)
            tile = tl.dot(left, tl.load(act_low + right_at, mask=right_mask, other=0.0), tile)
    return tile


@triton.jit
def _flip(tile, OB: tl.constexpr):
    """The last two axes in the other order."""
    if OB == 1:
        return tl.trans(tile)
    else:
        return tl.permute(tile, (0, 2, 1))


@triton.jit(do_not_specialize=["K", "G", "blocks"])
def _gram(  # noqa: C901, PLR0915 - a branch costs nothing where it is compiled away; a call would spill the sums
    grad, grad_low, act, act_low, grad_scale, act_scale, root, result, K, G, T, O, I, grad_k, grad_b, grad_g, grad_t,
    grad_o, act_b, act_g, act_t, act_i, blocks, TWO: tl.constexpr,
    BITS: tl.constexpr,  # of products of the tile: 8, 11 or 16
    DIAGONAL: tl.constexpr,
    PLAIN: tl.constexpr,  # Triton's interpreter has no products of bfloat16
    KP: tl.constexpr, OB: tl.constexpr, IB: tl.constexpr, TB: tl.constexpr,
):  # fmt: skip
    """Inner products of the outputs' Jacobians under weights `root^2`, for one example, group and block of rows."""
    example = (tl.program_id(0) // G).to(tl.int64)
    group = tl.program_id(0) % G
    row = tl.arange(0, KP * OB)
    k = row % KP
    o = tl.program_id(1) * OB + row // KP
    weight_row = tl.program_id(1) * OB + tl.arange(0, OB)
    grad_at = example * grad_b + group * grad_g
    act_at = example * act_b + group * act_g
    if DIAGONAL:
        total = tl.zeros((KP,), dtype=tl.float32)
    elif OB == 1:
        total = tl.zeros((KP, KP), dtype=tl.float32)
    else:
        total = tl.zeros((OB, KP, KP), dtype=tl.float32)
    mixed = total  # high times low: low times high is its transpose
    first = tl.program_id(2) * blocks
    for block in range(first, tl.minimum(first + blocks, tl.cdiv(I, IB))):
        i = block * IB + tl.arange(0, IB)
        tile = _tile(
            grad + grad_at, grad_low + grad_at, act + act_at, act_low + act_at, k, o, i, K, T, O, I,
            grad_k, grad_t, grad_o, act_t, act_i, TWO, KP * OB, IB, TB,
        )  # fmt: skip
        weight_mask = (weight_row < O)[:, None] & (i < I)[None, :]
        weight = tl.load(root + (group * O + weight_row[:, None]) * I + i[None, :], mask=weight_mask, other=0.0)
        if OB == 1:
            tile = tile * weight
        else:  # one product per row of the weight, each done by a group of threads of its own
            tile = tl.reshape(tile, (OB, KP, IB)) * weight[:, None, :]
        if DIAGONAL:
            if OB == 1:
                total += tl.sum(tile * tile, 1)
            else:
                total += tl.sum(tl.sum(tile * tile, 2), 0)
        elif PLAIN:
            total = tl.dot(tile, _flip(tile, OB), total)
        elif BITS == 11:  # in range by a power of two for each tile
            bring = _power(tl.max(tl.abs(tile)), 15.0, 110.0)
            half = (tile * bring).to(tl.float16)
            total += tl.dot(half, _flip(half, OB)) * (1.0 / bring) * (1.0 / bring)
        else:
            high = tile.to(tl.bfloat16)
            total = tl.dot(high, _flip(high, OB), total)
            if BITS == 16:
                low = (tile - high.to(tl.float32)).to(tl.bfloat16)
                if KP <= 128:
                    mixed = tl.dot(low, _flip(high, OB), mixed)
                else:  # two sums of products of so many probes do not fit into the registers
                    total = tl.dot(low, _flip(high, OB), total)
                    total = tl.dot(high, _flip(low, OB), total)
    if BITS == 16 and KP <= 128 and not DIAGONAL and not PLAIN:
        total += mixed + _flip(mixed, OB)
    unscale = 1.0 / (tl.load(grad_scale + example) * tl.load(act_scale + example))
    total = total * unscale * unscale
    part = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    part = part.to(tl.int64)
    line = tl.arange(0, KP)
    if DIAGONAL:
        tl.store(result + part * KP + line, total)
    else:
        if OB > 1:
            total = tl.sum(total, 0)
        tl.store(result + part * KP * KP + line[:, None] * KP + line[None, :], total)


@triton.jit(do_not_specialize=["K", "B", "G", "examples"])
def _squares(
    grad, grad_low, act, act_low, grad_scale, act_scale, result, K, B, T, O, I, grad_k, grad_b, grad_g, grad_t, grad_o,
    act_b, act_g, act_t, act_i, G, examples, TWO: tl.constexpr, KP: tl.constexpr, OB: tl.constexpr, IB: tl.constexpr,
    TB: tl.constexpr,
):  # fmt: skip
    """Squares of the Jacobian summed over probes and a part of the examples, for one block of rows and columns."""
    blocks = tl.cdiv(O, OB)
    group = tl.program_id(0) // blocks
    row = tl.arange(0, KP * OB)
    k = row % KP
    first_row = (tl.program_id(0) % blocks) * OB
    o = first_row + row // KP
    weight_row = first_row + tl.arange(0, OB)
    i = tl.program_id(1) * IB + tl.arange(0, IB)
    total = tl.zeros((OB, IB), dtype=tl.float32)
    first = tl.program_id(2) * examples
    start = first.to(tl.int64)
    grad_at = start * grad_b + group * grad_g
    act_at = start * act_b + group * act_g
    for example in range(first, tl.minimum(first + examples, B)):
        tile = _tile(
            grad + grad_at, grad_low + grad_at, act + act_at, act_low + act_at, k, o, i, K, T, O, I,
            grad_k, grad_t, grad_o, act_t, act_i, TWO, KP * OB, IB, TB,
        )  # fmt: skip
        factor = 1.0 / (tl.load(grad_scale + example) * tl.load(act_scale + example))
        tile = tl.reshape(tile * factor, (OB, KP, IB))
        total += tl.sum(tile * tile, 1)
        grad_at += grad_b
        act_at += act_b
    result_row = (tl.program_id(2) * G + group).to(tl.int64) * O + weight_row[:, None]
    mask = (weight_row < O)[:, None] & (i < I)[None, :]
    tl.store(result + result_row * I + i[None, :], total, mask=mask)


@triton.jit
def _places(channels, places, BLOCK: tl.constexpr):
    """Of one tile: where its numbers are with the places last, and with the channels last, and which there are."""
    blocks = tl.cdiv(channels, BLOCK)
    example = (tl.program_id(0) // blocks).to(tl.int64) * channels * places
    c = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places_last = example + c[:, None] * places + p[None, :]
    channels_last = example + p[:, None] * channels + c[None, :]
    inside = (c < channels)[:, None] & (p < places)[None, :]
    turned = (p < places)[:, None] & (c < channels)[None, :]
    return places_last, channels_last, inside, turned


@triton.jit
def _eleven(x, EXACT: tl.constexpr):
    """Rounded to 11 bits, where products are not to be exact: the tensor cores would cut the others off."""
    if EXACT:
        return x
    else:
        head = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        return tl.where(x == x, head, x)  # some NaN would carry over into the sign


@triton.jit(do_not_specialize=["channels", "places"])
def _round_parts(x, high, low, channels, places, BLOCK: tl.constexpr):
    """float32 -> 11 bits, and what is lost; the channels come last."""
    plain_at, last_at, inside, turned = _places(channels, places, BLOCK)
    value = tl.load(x + plain_at, mask=inside, other=0.0)
    head = _eleven(value, False)
    tl.store(high + last_at, tl.trans(head), mask=turned)
    tl.store(low + last_at, tl.trans(value - head), mask=turned)


@triton.jit(do_not_specialize=["channels", "places"])
def _sum_parts(first, second, third, result, channels, places, BLOCK: tl.constexpr):
    """The sum of three with the channels last; the places come last."""
    plain_at, last_at, inside, turned = _places(channels, places, BLOCK)
    total = tl.load(second + last_at, mask=turned, other=0.0) + tl.load(third + last_at, mask=turned, other=0.0)
    total += tl.load(first + last_at, mask=turned, other=0.0)
    tl.store(result + plain_at, tl.trans(total), mask=inside)


@triton.jit(do_not_specialize=["probes", "each"])
def _attention(
    query, key, value, shares, grad, of_query, of_key, of_value, scale, heads, probes, T, S, D, E,
    query_b, query_h, query_t, query_d, key_b, key_h, key_t, key_d, value_b, value_h, value_t, value_d,
    shares_b, shares_h, shares_t, shares_s, grad_k, grad_b, grad_h, grad_t, grad_d, per_program, EXACT: tl.constexpr,
    TB: tl.constexpr, SB: tl.constexpr, DB: tl.constexpr, EB: tl.constexpr,
):  # fmt: skip
    """Gradients of one head of one example for some probes; what belongs to no probe is read once."""
    precision: tl.constexpr = "tf32x3" if EXACT else "tf32"
    example = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    t, s, d, e = tl.arange(0, TB), tl.arange(0, SB), tl.arange(0, DB), tl.arange(0, EB)
    in_t, in_s, in_d, in_e = t < T, s < S, d < D, e < E
    t, s, d, e = t.to(tl.int64), s.to(tl.int64), d.to(tl.int64), e.to(tl.int64)
    of_t, of_s = in_t[:, None] & in_d[None, :], in_s[:, None] & in_d[None, :]
    q = tl.load(
        query + example * query_b + head * query_h + t[:, None] * query_t + d[None, :] * query_d, mask=of_t, other=0.0
    )
    k = tl.load(key + example * key_b + head * key_h + s[:, None] * key_t + d[None, :] * key_d, mask=of_s, other=0.0)
    v = tl.load(
        value + example * value_b + head * value_h + s[None, :] * value_t + e[:, None] * value_d,
        mask=in_e[:, None] & in_s[None, :],
        other=0.0,
    )
    share = tl.load(
        shares + example * shares_b + head * shares_h + t[:, None] * shares_t + s[None, :] * shares_s,
        mask=in_t[:, None] & in_s[None, :],
        other=0.0,
    )
    q, k, v = _eleven(q, EXACT), _eleven(k, EXACT), _eleven(v, EXACT)
    turned = tl.trans(_eleven(share, EXACT))
    first = tl.program_id(1) * per_program
    examples = tl.num_programs(0) // heads
    at = grad + first.to(tl.int64) * grad_k + example * grad_b + head * grad_h
    result_at = first.to(tl.int64) * examples + example  # results are (K, B, positions, heads, width)
    for _probe in range(first, tl.minimum(first + per_program, probes)):
        g = tl.load(at + t[:, None] * grad_t + e[None, :] * grad_d, mask=in_t[:, None] & in_e[None, :], other=0.0)
        g = _eleven(g, EXACT)
        product = tl.dot(turned, g, input_precision=precision)
        tl.store(
            of_value + ((result_at * S + s[:, None]) * heads + head) * E + e[None, :],
            product,
            mask=in_s[:, None] & in_e[None, :],
        )
        scores = tl.dot(g, v, input_precision=precision)
        scores = _eleven((scores - tl.sum(scores * share, 1)[:, None]) * share * scale, EXACT)
        product = tl.dot(scores, k, input_precision=precision)
        tl.store(of_query + ((result_at * T + t[:, None]) * heads + head) * D + d[None, :], product, mask=of_t)
        product = tl.dot(tl.trans(scores), q, input_precision=precision)
        tl.store(of_key + ((result_at * S + s[:, None]) * heads + head) * D + d[None, :], product, mask=of_s)
        at += grad_k
        result_at += examples


@triton.jit(do_not_specialize=["examples", "positions", "width"])
def _moments(
    grad, other, products, sums, examples, positions, width, grad_k, grad_b, grad_t, grad_p, other_b, other_t, other_p,
    PRODUCTS: tl.constexpr, SUMS: tl.constexpr, TB: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """Sums over positions of gradients times something that has no probes, and of gradients alone, in one pass."""
    probe = (tl.program_id(0) // examples).to(tl.int64)
    example = (tl.program_id(0) % examples).to(tl.int64)
    p = tl.program_id(1) * PB + tl.arange(0, PB)
    inside = p < width
    of_products, of_sums = tl.zeros((PB,), dtype=tl.float32), tl.zeros((PB,), dtype=tl.float32)
    grad_at = grad + probe * grad_k + example * grad_b + p.to(tl.int64)[:, None] * grad_p
    other_at = other + example * other_b + p.to(tl.int64)[:, None] * other_p
    for start in range(0, positions, TB):
        t = (start + tl.arange(0, TB)).to(tl.int64)
        mask = inside[:, None] & (t < positions)[None, :]
        value = tl.load(grad_at + t[None, :] * grad_t, mask=mask, other=0.0)
        if SUMS:
            of_sums += tl.sum(value, 1)
        if PRODUCTS:
            of_products += tl.sum(value * tl.load(other_at + t[None, :] * other_t, mask=mask, other=0.0), 1)
    index = tl.program_id(0).to(tl.int64) * width + p
    if PRODUCTS:
        tl.store(products + index, of_products, mask=inside)
    if SUMS:
        tl.store(sums + index, of_sums, mask=inside)


@triton.jit(do_not_specialize=["probes", "each"])
def _layer_norm(
    grad, rows, mean, slope, weight, result, probes, width, per_program, WEIGHT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Gradients through a layer norm, of one row for some probes; the row is read once."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK)
    inside = p < width
    steep = tl.load(slope + row)
    normalised = (tl.load(rows + row * width + p, mask=inside, other=0.0) - tl.load(mean + row)) * steep
    normalised = tl.where(inside, normalised, 0.0)
    if WEIGHT:
        weight_row = tl.load(weight + p, mask=inside, other=0.0)
    first = tl.program_id(1) * per_program
    size = tl.num_programs(0).to(tl.int64) * width
    at = first.to(tl.int64) * size + row * width
    for _probe in range(first, tl.minimum(first + per_program, probes)):
        value = tl.load(grad + at + p, mask=inside, other=0.0)
        if WEIGHT:
            value = value * weight_row
        level = tl.sum(value, 0) / width
        along = tl.sum(value * normalised, 0) / width
        tl.store(result + at + p, (value - level - along * normalised) * steep, mask=inside)
        at += size


split, split_rows, scale, gram, squares = _split, _split_rows, _scale, _gram, _squares
round_parts, sum_parts = _round_parts, _sum_parts
attention, moments, layer_norm = _attention, _moments, _layer_norm
