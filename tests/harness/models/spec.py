"""The TensorIterator example of the specification as IR text: 256 LSTM units over [1,25,512]."""

from __future__ import annotations

import numpy as np

from tests.harness.ir import Net, feed, take

STEPS, FEATURES, HIDDEN = 25, 512, 256


def spec_tensor_iterator(
    seed: int, *, document: bool = False, steps: int = STEPS, features: int = FEATURES, hidden: int = HIDDEN
) -> tuple[bytes, bytes]:
    """Build the "full TensorIterator layer" in a net: inputs x, h, c, output y [1,25,256]. Returns (xml, weights).

    With `document`, the layer is written as in the document, with only its elided attributes filled in: input
    ports have no precision, Parameter and Const take type and shape from their ports, and the cell has the
    older form of one weight matrix [W R]. Otherwise it is written in today's form, which OpenVINO reads too,
    and may have other sizes.
    """
    # NumPy never changes RandomState's stream, so that stored expectations stay valid.
    random = np.random.RandomState(seed)
    wr = random.uniform(-0.08, 0.08, (4 * hidden, features + hidden)).astype(np.float32)
    bias = random.uniform(-0.2, 0.2, 4 * hidden).astype(np.float32)
    to_cell, to_sequence = np.array([1, features], np.int64), np.array([1, 1, hidden], np.int64)
    if document:
        return _DOCUMENT.encode(), b"".join(a.tobytes() for a in (to_cell, wr, bias, to_sequence))
    net, body = Net("tensor_iterator"), Net("body")
    x = net.parameter("f32", (1, steps, features), "x")
    h, c = (net.parameter("f32", (1, hidden), name) for name in "hc")
    xi = body.parameter("f32", (1, 1, features))
    hi, ci = (body.parameter("f32", (1, hidden)) for _ in range(2))
    flat = body.layer("Reshape", "opset1", [xi, body.const(to_cell)], {"special_zero": False})
    weights = [body.const(a) for a in (wr[:, :features], wr[:, features:], bias)]
    ho, co = body.layer("LSTMCell", "opset4", [flat, hi, ci, *weights], {"hidden_size": hidden}, outputs=2)
    yi = body.layer("Reshape", "opset1", [ho, body.const(to_sequence)], {"special_zero": False})
    co, ho, yi = (body.result(value) for value in (co, ho, yi))
    slices = {"axis": 1, "start": 0, "end": -1, "stride": 1, "part_size": 1}
    inputs, outputs = [feed(x, xi, **slices), feed(h, hi), feed(c, ci)], [take(yi, **slices)]
    net.result(net.tensor_iterator(body, inputs, outputs, [(co, ci), (ho, hi)]))
    return net.build()


def _dims(*shape: int) -> str:
    return "".join(f"<dim>{d}</dim>" for d in shape)


_X, _STATE, _SLICE, _FLAT, _WR, _B = (
    _dims(*shape) for shape in ((1, 25, 512), (1, 256), (1, 1, 512), (1, 512), (1024, 768), (1024,))
)
_Y, _YI, _2, _3 = (_dims(*shape) for shape in ((1, 25, 256), (1, 1, 256), (2,), (3,)))

_DOCUMENT = f"""<?xml version="1.0"?>
<net name="tensor_iterator" version="10">
<layers>
<layer id="0" name="x" type="Parameter" version="opset1">
<output><port id="0" precision="FP32">{_X}</port></output>
</layer>
<layer id="1" name="h" type="Parameter" version="opset1">
<output><port id="0" precision="FP32">{_STATE}</port></output>
</layer>
<layer id="2" name="c" type="Parameter" version="opset1">
<output><port id="0" precision="FP32">{_STATE}</port></output>
</layer>
<layer id="3" name="iterator" type="TensorIterator" version="opset1">
<input><port id="0">{_X}</port><port id="1">{_STATE}</port><port id="2">{_STATE}</port></input>
<output><port id="3" precision="FP32">{_Y}</port></output>
<port_map>
<input axis="1" external_port_id="0" internal_layer_id="0" start="0"/>
<input external_port_id="1" internal_layer_id="3"/>
<input external_port_id="2" internal_layer_id="4"/>
<output axis="1" external_port_id="3" internal_layer_id="12"/>
</port_map>
<back_edges>
<edge from-layer="8" to-layer="4"/>
<edge from-layer="9" to-layer="3"/>
</back_edges>
<body>
<layers>
<layer id="0" name="xi" type="Parameter" version="opset1">
<output><port id="0" precision="FP32">{_SLICE}</port></output>
</layer>
<layer id="1" name="to_cell" type="Const" version="opset1">
<data offset="0" size="16"/>
<output><port id="1" precision="I64">{_2}</port></output>
</layer>
<layer id="2" name="squeeze" type="Reshape" version="opset1">
<input><port id="0">{_SLICE}</port><port id="1">{_2}</port></input>
<output><port id="2" precision="FP32">{_FLAT}</port></output>
</layer>
<layer id="3" name="hi" type="Parameter" version="opset1">
<output><port id="0" precision="FP32">{_STATE}</port></output>
</layer>
<layer id="4" name="ci" type="Parameter" version="opset1">
<output><port id="0" precision="FP32">{_STATE}</port></output>
</layer>
<layer id="5" name="wr" type="Const" version="opset1">
<data offset="16" size="3145728"/>
<output><port id="1" precision="FP32">{_WR}</port></output>
</layer>
<layer id="6" name="b" type="Const" version="opset1">
<data offset="3145744" size="4096"/>
<output><port id="1" precision="FP32">{_B}</port></output>
</layer>
<layer id="7" name="cell" type="LSTMCell" version="opset1">
<data hidden_size="256"/>
<input>
<port id="0">{_FLAT}</port><port id="1">{_STATE}</port><port id="2">{_STATE}</port>
<port id="3">{_WR}</port><port id="4">{_B}</port>
</input>
<output><port id="5" precision="FP32">{_STATE}</port><port id="6" precision="FP32">{_STATE}</port></output>
</layer>
<layer id="8" name="c_out" type="Result" version="opset1"><input><port id="0">{_STATE}</port></input></layer>
<layer id="9" name="h_out" type="Result" version="opset1"><input><port id="0">{_STATE}</port></input></layer>
<layer id="10" name="to_sequence" type="Const" version="opset1">
<data offset="3149840" size="24"/>
<output><port id="1" precision="I64">{_3}</port></output>
</layer>
<layer id="11" name="unsqueeze" type="Reshape" version="opset1">
<input><port id="0">{_STATE}</port><port id="1">{_3}</port></input>
<output><port id="2" precision="FP32">{_YI}</port></output>
</layer>
<layer id="12" name="yi" type="Result" version="opset1"><input><port id="0">{_YI}</port></input></layer>
</layers>
<edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="7" to-port="0"/>
<edge from-layer="3" from-port="0" to-layer="7" to-port="1"/>
<edge from-layer="4" from-port="0" to-layer="7" to-port="2"/>
<edge from-layer="5" from-port="1" to-layer="7" to-port="3"/>
<edge from-layer="6" from-port="1" to-layer="7" to-port="4"/>
<edge from-layer="7" from-port="6" to-layer="8" to-port="0"/>
<edge from-layer="7" from-port="5" to-layer="9" to-port="0"/>
<edge from-layer="7" from-port="5" to-layer="11" to-port="0"/>
<edge from-layer="10" from-port="1" to-layer="11" to-port="1"/>
<edge from-layer="11" from-port="2" to-layer="12" to-port="0"/>
</edges>
</body>
</layer>
<layer id="4" name="y" type="Result" version="opset1"><input><port id="0">{_Y}</port></input></layer>
</layers>
<edges>
<edge from-layer="0" from-port="0" to-layer="3" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="3" to-port="1"/>
<edge from-layer="2" from-port="0" to-layer="3" to-port="2"/>
<edge from-layer="3" from-port="3" to-layer="4" to-port="0"/>
</edges>
</net>
"""
