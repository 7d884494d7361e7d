"""Known causes of differences between ovgpu and OpenVINO."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .corpus import Subject
from .traits import (
    has_extreme_values,
    has_millions,
    has_wide_integers,
    has_zero_parameters,
    is_small,
    may_loop_forever,
    mixes_integers_and_reals,
)


@dataclass(frozen=True)
class Cause:
    """Why (``why``) a difference of a kind (see `verdicts.FINDINGS`) is expected: where its text and the document match
    these regular expressions, and ``when`` holds for the model."""

    kind: str
    text: str
    why: str
    document: str = ""
    when: Callable[[Subject], bool] | None = None


def explanation(kind: str, text: str, subject: Subject) -> str:
    """Return why a difference is expected of the subject, or an empty string."""
    document = subject.xml.decode(errors="replace")
    for cause in EXPLAINED:
        if (
            cause.kind == kind
            and re.search(cause.text, text, re.DOTALL)
            and re.search(cause.document, document, re.DOTALL)
            and (cause.when is None or cause.when(subject))
        ):
            return cause.why
    return ""


def op(*names: str) -> str:
    """Return a regular expression for a layer of one of these types."""
    return rf'type="({"|".join(names)})"'


def both(*patterns: str) -> str:
    """Return a regular expression for a document that has all of these, in any order."""
    return "^" + "".join(f"(?=.*{pattern})" for pattern in patterns)


def refused(why: str, *texts: str, document: str = "") -> Cause:
    """Return a cause for models that OpenVINO computes and ovgpu refuses, with an error that has one of these texts."""
    return Cause("refused", "|".join(texts), why, document)


SMALL_TYPES = "(u1|u2|u3|u4|u6|i4|nf4|f4e2m1|f8e4m3|f8e5m2|f8e8m0)"
INTEGER_LIMIT = (
    r"(instead of|\]:) (-?128|127|255|-?32768|32767|65535|-?2147483648|2147483647|2147483520|"
    r"-?92233720\d+|18446744\d+)\b"
)
EXTREME = r"\b(nan|inf)\b|e\+?[1-9]\d"
STEEP = ("Sin", "Cos", "Tan", "Exp", "Sinh", "Cosh", "Atanh")  # for large arguments, or near the ends of a domain
SMALL_ERROR = r"largest error [\d.]+e-0[3-9]"

DROPPED_NAN = "the plugin drops NaN"

EXPLAINED: tuple[Cause, ...] = (
    Cause("hung", "", "a loop of millions of iterations, which can be cancelled", op("Loop"), has_millions),
    Cause(
        "hung",
        "",
        "an endless loop, which can be cancelled; OpenVINO reads low bits of trip count and condition",
        op("Loop"),
        may_loop_forever,
    ),
    # Files and attributes: OpenVINO's parser accepts more than its serializer writes.
    refused(
        "pugixml goes on after errors of the document",
        "the XML is malformed",
        "<net> has no <layers>",
        "the XML is no OpenVINO IR",
    ),
    refused(
        "OpenVINO takes the first of doubled ids, ports and edges, and drops edges to nowhere",
        "two ports have id",
        "has the same id",
        "two edges lead to",
        r"there is no layer \d",
        "which the layer does not have",
        "is no output port",
        "an edge lacks",
        r"input \d+ is not connected",
        "the same variable",
    ),
    refused(
        "OpenVINO reads the number that a text begins with",
        r"attribute '[\w-]+': .*(is not an integer|is not a number)",
        r"\[Const\] '[^']*' is not an integer",
    ),
    refused("OpenVINO leaves an attribute at its class's default if its text is no boolean", "is not a boolean"),
    refused(
        "OpenVINO reads negative extents as 0, and truncates the bits of large ones",
        'Cannot parse dimension: "-',
        "negative extent",
        r"dimension \d+ does not fit into 64 bits",
    ),
    refused(
        "OpenVINO leaves required attributes that are missing at its class's defaults", r"attribute '\w+' is missing"
    ),
    refused(
        "the specification does not have such attributes",
        r"attribute '\w+': -?\d+ is less than",
        r"[a-z_]+ (is|must be at least 2, not) -?[\d.e+-]+",
        r"[a-z_]+ (nan|inf|-?[\d.e+]+) is (negative|not positive|not finite|no )",
        "are not all positive",
        "is neither -1 nor positive",
        "there are no classes",
        r"attribute '\w+': '.*' is not one of",
        "has the element .* which is not positive",
        r"has \d+ elements, and",
        r"has \d+ elements instead of \d+",
        r"there are -\d+ ",
        r"has \d+ elements, not \d+",
        r"must have \d+ elements, not \d+",
        "the pooled size is",
        "would have the shape",
        "is no size of an output",
    ),
    refused("OpenVINO truncates the bits of densities beyond 2^31", "gives more than", document=op("PriorBox")),
    refused("NumPy has at most 64 axes", "a tensor has at most 64 axes"),
    refused("a dynamic element type has no values", "cannot have the dynamic element type", "_type is dynamic"),
    refused(
        "the specification does not have this element type",
        r"element type \w+ is (not|no)\b",
        "element types differ",
        r"must be [\w -]+, not \w+",
        r"_type is \w+, not",
        "a back edge brings",
        "would hold strings",
    ),
    refused("the specification does not have such numbers", r"there is no number from", "a matrix has no inverse"),
    refused(
        "the body of a loop reads stray memory for parameters that nothing feeds",
        "has no value: it is not in the port map",
    ),
    refused("variables in bodies are not supported", "variables in the body"),
    refused("OpenVINO does not compare the types of a variable and its values", r"\[Assign\] the new value has type"),
    refused("OpenVINO takes one of several values for a parameter of a body", "entries of the port map"),
    refused("the bytes of strings contradict each other", "has inconsistent offsets"),
    # Values that are known only at run time. The plugin does not check them: it reads past the end, or stray memory.
    refused(
        "the plugin does not check values of indices, axes, lengths and counts",
        "is out of range",
        r"index -?\d+ is out of range",
        r"is \d+, of \d+ elements",
        "do not ascend",
        "name an axis twice",
        "step and axes have",
        "are both",
        "an axis is expected",
        r"one axis is expected, not",
        "step is 0",
        "is no class of",
        "num_segments -",
        "of the batch axis is not",
        r"size -?\d+ is negative",
        "the number of samples is",
        "not in ascending order",
        "more labels than steps",
        "need replacement",
        "has the extent -",
        "has an extent of -",
        "an extent below -1",
    ),
    refused(
        "the plugin does not compare shapes that are known only at run time",
        r"do not broadcast(?!.*\d\.\.\d)",
        "does not broadcast",
        "cannot be broadcast",
        "cannot be reshaped",
        "do not multiply",
        r"there are \d+ ",
        r"differ\b",
        r"must be equal",
        r"the sides of \w+ and \w+ are",
        "that could have had extent 1",
        r"\d+ (sizes|scales) for \d+ axes",
        "must be a scalar",
        "where it should be",
        r"\d+ positions instead of",
        "is no multiple of",
        "parts along an axis",
        "do not fit",
        "are no patches",
        "are more than the",
        "add up to",
        "the initial value of variable",
        "complex numbers are pairs",
        "must have one element",
        "does not fit",
        "divided by",
        "are more than extent",
        r"a region has \d+ numbers",
        "channels have offsets that",
        r"the offsets have \d+ channels",
        r"elements on axis \d",
        r"are given, where \d+ is needed",
    ),
    # Both compute, with different results.
    Cause("differs", rf"{EXTREME}|{SMALL_ERROR}", "the plugin computes f64 in f32", '"f64"'),
    Cause(
        "differs",
        "",
        "the plugin computes f64 in f32 before an operation that amplifies small differences",
        '"f64"(?s:.*)' + op(*STEEP),
        is_small,
    ),
    Cause(
        "differs",
        "",
        "the plugin does not compute with types of 1 to 8 bits as they are",
        rf'type="Parameter"[^>]*>\s*<data [^>]*element_type="{SMALL_TYPES}"|'
        rf'(destination|output)_type="{SMALL_TYPES}"',
    ),
    Cause("differs", "", "the plugin truncates numbers that it converts to f8e8m0", '"f8e8m0"'),
    Cause("differs", "", "the plugin propagates NaN, infinities and overflows differently", when=has_extreme_values),
    Cause(
        "differs",
        r"\]: -?\d+ instead of -?\d+",
        "the plugin's search for the greatest value skips NaN",
        both(op(r"CTCGreedyDecoder\w*"), op("Asin", "Acos", "Log", "Sqrt")),
        is_small,
    ),
    Cause("differs", r"\]: nan instead of", DROPPED_NAN, op("ReLU", "Relu", "Clamp", "MaxPool", "HSwish")),
    Cause(
        "differs", EXTREME, "results beyond f32, or at the end of a domain, where one rounding decides", when=is_small
    ),
    Cause("differs", r"expected \((\d+, )*0[,)]", "the plugin's outputs are empty where its shapes contradict"),
    Cause("differs", INTEGER_LIMIT, "numbers out of the range of an integer type, and divisions by 0, give any value"),
    Cause("differs", "", "OpenVINO keeps integers in 32 bits", when=has_wide_integers),
    Cause(
        "differs",
        "",
        "OpenVINO keeps numbers of attributes in 32 bits",
        r'="[^"]*\b-?(2147483648|4294967296|9223372036854775807|9223372036854775808)\b',
    ),
    Cause(
        "differs",
        "",
        "C++ does not define shifts by as many bits as the type has, or more",
        op("Bitwise(Left|Right)Shift"),
    ),
    Cause("differs", r"\b\d{10,}\b", "the plugin computes i64 and unsigned integers in i32", op(r"Bitwise\w+")),
    Cause(
        "differs",
        "",
        "OpenVINO truncates results for integers before it runs, and rounds them later",
        when=mixes_integers_and_reals,
    ),
    Cause(
        "differs",
        r"largest error [\d.]+e-0[5-9]",
        "sums of products in another order",
        op(r"\w*MatMul", r"\w*Convolution\w*", r"(LSTM|GRU|RNN)\w+", r"Reduce\w+", "MVN"),
    ),
    Cause(
        "differs",
        SMALL_ERROR,
        "one rounding of a large argument",
        both(op("Sin", "Cos", "Tan"), op("Cosh", "Sinh", "Exp", "Power")),
        is_small,
    ),
    Cause(
        "differs",
        "largest error",
        "sums of tens of thousands of rows, in another order",
        r'shape="\d{5,}"(?s:.*)' + op(r"Embedding\w+"),
        is_small,
    ),
    Cause(
        "differs",
        r"instead of 1[15]\b",
        "the plugin saturates sums of squares in 8 bits before it takes the root",
        'element_type="[iu]8"(?s:.*)' + op("ReduceL2"),
    ),
    Cause(
        "differs",
        r"output \d+: 1 of .*\]: -?\d+ instead of -?\d+",
        "one rounding decides the integer to which an interpolated value is truncated",
        r'element_type="[iu]\d+"(?s:.*)' + op("GridSample"),
        is_small,
    ),
    Cause(
        "differs",
        r"largest error [\d.]+e-0[5-9]",
        "coordinates between pixels that are rounded in another order",
        op("ROIPooling", r"ROIAlign\w*"),
    ),
    Cause(
        "differs",
        r"output \d+: \d\d? of",
        "a quotient that is rounded to a code can fall to either side",
        op("FakeQuantize"),
    ),
    Cause(
        "differs",
        "largest error",
        "the plugin does not round products of compressed weights to f16",
        r'destination_type="f16"(?s:.*)' + op(r"(Group)?Convolution(BackpropData)?", "MatMul", "Gather"),
        is_small,
    ),
    Cause(
        "differs",
        rf"{SMALL_ERROR}|largest error 0\.00",
        "the plugin does not round to 16 bits between operations",
        '"b?f16"',
        is_small,
    ),
    Cause(
        "differs",
        "",
        "the plugin does not round to 16 bits before an operation that amplifies differences",
        '"b?f16"(?s:.*)' + op("GatherTree", "BatchNormInference", *STEEP),
        is_small,
    ),
    Cause(
        "differs",
        r"shape \(\d+, 3\), expected",
        "the plugin pads and cuts the selected boxes to static counts, and takes thresholds below 0 for others",
        op("NonMaxSuppression"),
    ),
    Cause(
        "differs",
        "",
        "the order of equal elements",
        op("TopK", "ExperimentalDetectronTopKROIs", "MatrixNms", "MulticlassNms", "Proposal", "GenerateProposals"),
    ),
    Cause(
        "differs",
        "",
        "the order of equal elements: boxes that are all too small",
        op("ExperimentalDetectronGenerateProposalsSingleImage") + r'(?s:.*?)min_size="(inf|\d{3,}|\d[\d.]*e)',
    ),
    Cause(
        "differs",
        "",
        "the order of equal elements: boxes that are all too small",
        both(
            op("ExperimentalDetectronGenerateProposalsSingleImage"),
            'min_size="[1-9]',
            op("Sin", "Cos", "Tanh", "Sigmoid"),
        ),
    ),
    Cause(
        "differs",
        r"\]: 0(\.0)? instead of|instead of (0\.0|nan|-?[\d.]+e[-+]?\d\d)",
        "regions of images that do not exist",
        op(r"(Deformable)?PSROIPooling", r"ROI\w+"),
    ),
    Cause("differs", r"\]: 0(\.0)? instead of", "the plugin does not check values of indices", op("GatherND")),
    Cause(
        "differs",
        r"shape \([\d, ]+\), expected",
        "the plugin treats an axis without elements as one of one element",
        r'shape="[\d,]*\b0\b(?s:.*)' + op(r"(Group)?ConvolutionBackpropData"),
    ),
    Cause(
        "differs",
        "instead of 0",
        "the plugin computes nothing for images without channels",
        r'shape="[\d,]*\b0\b(?s:.*)' + op("ExperimentalDetectronPriorGridGenerator"),
    ),
    Cause(
        "differs",
        "largest error",
        "the plugin normalizes the state of a recurrent layer along another axis",
        both(op(r"(LSTM|GRU|RNN)Sequence"), op("GRN")),
    ),
    Cause("differs", "", "the plugin reads past the end of spectra that are too short", op("IRDFT")),
    Cause(
        "differs", r"shape \(\d+, \d+\), expected", "results so near 0 that one rounding makes them 0", op("NonZero")
    ),
    Cause(
        "differs",
        "",
        "the plugin's squared differences of 8 bits are wrong",
        'element_type="[iu]8"(?s:.*)' + op("SquaredDifference"),
    ),
    Cause(
        "differs",
        r"\]: -?\d+ instead of -?\d+",
        "the plugin rounds integers along the last two axes, and truncates them along others",
        op("Interpolate"),
    ),
    Cause(
        "differs",
        r"shape \(2, \d+\), expected \(2, \d+\)",
        "OpenVINO counts boxes of max_size without min_size and leaves them unset",
        op("PriorBox"),
    ),
    Cause(
        "differs",
        r"shape \(2, 0\), expected \(2, \d+\)",
        "OpenVINO multiplies extents below 0 with each other",
        op("PriorBox", "PriorBoxClustered"),
    ),
    Cause(
        "differs",
        r"shape \([\d, ]+\), expected",
        "the plugin joins parts along the first axis instead of the last, which contradicts the shapes that it infers",
        r'<output [^>]*axis="-\d+"',
    ),
    Cause(
        "differs",
        r"shape \([\d, ]+\), expected",
        "the plugin takes parts of results for one element wide",
        r'<output external_port_id="\d+" internal_layer_id="\d+" axis="',
        is_small,
    ),
    Cause(
        "differs",
        r"shape \([\d, ]+\), expected",
        "the page gives the order of axes a meaning, OpenVINO sorts them",
        r'type="Interpolate" version="opset1"[^>]*>\s*<data [^>]*\baxes="\d+,',
    ),
    Cause("differs", "", "the plugin adds up shifts along one axis in 32 bits", op("Roll"), has_millions),
    Cause(
        "differs",
        r"instead of 0(\.0)?\b",
        "the plugin copies nothing for index tuples without elements",
        r'shape="([\d,?.]+,)?0"(?s:.*)' + op("GatherND"),
    ),
    Cause(
        "differs",
        r"\]: -?\d{8,} instead of -?\d{8,}",
        "OpenVINO computes powers of integers in f32",
        r'element_type="[iu]\d+"(?s:.*)' + op("Power"),
        is_small,
    ),
    Cause(
        "differs",
        r"largest error 1;",
        "numbers near an integer, which one rounding decides",
        op("Floor", "Ceiling", "Round"),
        is_small,
    ),
    Cause(
        "differs",
        r"element type \w+, expected",
        "OpenVINO keeps the type that a body's parameter declares, whatever the parameter gets",
        op("TensorIterator", "Loop"),
    ),
    Cause("differs", r"instead of 0\b", "the plugin leaves sequences of length 0 unset", op("GatherTree")),
    Cause("differs", "", "labels that are the blank", op("CTCLoss")),
    Cause("differs", "instead of 0", "the plugin's Unique gives zeros where an output is not used", op("Unique")),
    Cause("differs", "output 1: .*differ; ", "elements that equal the least of their type have index 0", op("MaxPool")),
    Cause(
        "differs",
        "instead of 0\\b",
        "zeros, the least unsigned numbers, have index 0",
        r'element_type="u\d+"(?s:.*)' + op("MaxPool"),
    ),
    Cause("differs", rf"{SMALL_ERROR}|largest error 0\.0", "the plugin's ErfInv loses digits near 1", op("ErfInv")),
    Cause("differs", "", "roots of numbers near or below 0, to which no eps is added", r'eps="(-|0(\.0)?")'),
    Cause("differs", "", "the plugin treats parameters of 0 as absent", op("Selu", "HardSigmoid"), has_zero_parameters),
    Cause(
        "differs",
        "",
        "the plugin treats parameters of 0 as absent: those that are computed",
        both(op("Selu", "HardSigmoid"), op("Floor", "Round", "Sign", "Relu", "LogSoftmax")),
        is_small,
    ),
    Cause(
        "differs",
        "",
        "the specification's default for axis is 1, the class's is 0",
        r'type="Soft[mM]ax" version="opset1"[^>]*>\s*(<(?!data)|<data\b(?![^>]*axis))',
    ),
    Cause(
        "differs",
        r"shape \([\d, ]+\), expected",
        "the specification's default for flatten is true, not the class's",
        r'type="ExperimentalDetectronPriorGridGenerator"[^>]*>\s*(<(?!data)|<data\b(?![^>]*flatten))',
    ),
    Cause("differs", "", "the plugin truncates the bias, and takes axes for the channels or for all others", op("LRN")),
    Cause("differs", r"\.\d+ instead of", "the plugin adds up steps in f32", op("Range")),
    Cause(
        "differs",
        r"shape \(\d+,\), expected",
        "OpenVINO reads scalars of packed types as whole bytes",
        rf'element_type="{SMALL_TYPES}" shape=""(?s:.*)' + op("Range"),
    ),
    Cause(
        "differs",
        r"e\+?\d\d",
        "the plugin computes exp(x) - 1 of x near 0",
        op("Elu") + r'(?s:.*)alpha="[^"]*e\+?\d\d"',
    ),
    Cause(
        "differs",
        rf"\d of \d{{5,}}|{SMALL_ERROR}",
        "remainders of quotients near integers, which one rounding decides",
        op("Mod", "FloorMod"),
    ),
    Cause(
        "differs",
        "",
        "the plugin adds a scalar mask to all scores but the sink's",
        op("ScaledDotProductAttention") + r'(?s:.*)to-port="5"',
    ),
    Cause(
        "differs",
        "instead of nan",
        "the plugin hides all keys if a scalar mask is false",
        r'element_type="boolean" shape=""(?s:.*)' + op("ScaledDotProductAttention"),
    ),
    Cause("differs", "instead of ([,;]|$)", "the plugin does not move strings", '"string"'),
    Cause(
        "differs",
        r"\]: [^.]* instead of",
        "the plugin gives the first strings for every part",
        '"string"(?s:.*)' + op("Split", "VariadicSplit"),
    ),
    Cause("differs", "", "regions that do not fill the channels", op("RegionYolo")),
    Cause("differs", "", "probabilities below 0", op("Multinomial")),
    Cause("differs", "", "truth values of numbers that are nearly 0", op(r"Logical\w+")),
    Cause(
        "differs",
        r"\]: 0\.0 instead of|instead of 0\.0",
        "lengths beyond the number of steps",
        op(r"(LSTM|GRU|RNN)Sequence"),
    ),
)
