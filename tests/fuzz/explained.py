"""Known causes for which ovgpu and OpenVINO part on a model."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A difference of a kind (see `verdicts.FINDINGS`) that is expected where its text and the document match these
    regular expressions, and why. ``extreme``: only with values that are not finite, or very large."""

    kind: str
    text: str
    why: str
    document: str = ""
    extreme: bool = False


def op(*names: str) -> str:
    """Return a regular expression for a layer of one of these types."""
    return rf'type="({"|".join(names)})"'


def refused(why: str, *texts: str, document: str = "") -> Cause:
    """Return the cause that ovgpu refuses what OpenVINO computes, with an error that has one of these texts."""
    return Cause("refused", "|".join(texts), why, document)


PACKED = r'(element_type|destination_type|output_type)="(u1|u2|u3|u4|u6|i4|nf4|f4e2m1|f8e4m3|f8e5m2|f8e8m0)"'
EDGE = (r"(instead of|\]:) (-?128|127|255|-?32768|32767|65535|-?2147483648|2147483647|2147483520|-?92233720\d+|"
        r"18446744\d+)\b")

EXPLAINED: tuple[Cause, ...] = (
    # Files and attributes, of which OpenVINO's parser takes more than its own serializer writes.
    refused("pugixml goes on after errors of the document", "the XML is malformed", "<net> has no <layers>"),
    refused("OpenVINO takes the first of doubled ids, ports and edges, and drops edges to nowhere",
            "two ports have id", "has the same id", "two edges lead to", r"there is no layer \d",
            "which the layer does not have", "is no output port", "an edge lacks", r"input \d+ is not connected",
            "the same variable"),
    refused("OpenVINO reads the number that a text begins with",
            r"attribute '[\w-]+': .*(is not an integer|is not a number)", r"\[Const\] '[^']*' is not an integer"),
    refused("OpenVINO takes extents below 0 for 0, and cuts off the bits of others", 'Cannot parse dimension: "-',
            "negative extent", r"dimension \d+ does not fit into 64 bits"),
    refused("OpenVINO leaves attributes that are required at whatever its class has", r"attribute '\w+' is missing"),
    refused("the page does not have such attributes", r"attribute '\w+': -?\d+ is less than",
            r"[a-z_]+ (is|must be at least 2, not) -?[\d.e+-]+", r"[a-z_]+ -?[\d.e+]+ is (negative|not positive|no )",
            "are not all positive", "has the element .* which is not positive", r"has \d+ elements, not \d+",
            r"must have \d+ elements, not \d+", "the pooled size is", "would have the shape",
            "is no size of an output"),
    refused("a dynamic element type has no values", "cannot have the dynamic element type", "_type is dynamic"),
    refused("the page does not have this element type",
            r"element type \w+ is (not|no)\b", "element types differ", r"must be [\w -]+, not \w+",
            "a back edge brings", "would hold strings"),
    refused("the body of a loop takes stray memory for what nothing feeds", "has no value: it is not in the port map"),
    refused("the bytes of strings contradict each other", "has inconsistent offsets"),
    # Values that only running shows, which the plugin does not look at: it reads past the end, or gives stray memory.
    refused("the plugin does not look at values of indices, axes, lengths and counts", "is out of range",
            r"index -?\d+ is out of range", r"is \d+, of \d+ elements", "do not ascend", "name an axis twice",
            "an axis is expected", r"one axis is expected, not", "step is 0", "is no class of", "num_segments -",
            "of the batch axis is not", r"size -?\d+ is negative", "the number of samples is", "not in ascending order",
            "more labels than steps", "need replacement", "has the extent -",
            "has an extent of -", "an extent below -1"),
    refused("the plugin does not compare shapes that it learns when it runs", "do not broadcast", "does not broadcast",
            "cannot be broadcast", "cannot be reshaped", "do not multiply", r"there are \d+ ", r"differ\b",
            r"must be equal", r"the sides of \w+ and \w+ are", "that could have had extent 1",
            r"\d+ (sizes|scales) for \d+ axes", "must be a scalar", "where it should be", r"\d+ places instead of",
            "is no multiple of", "parts along an axis", "do not fit", "are no patches", "are more than the",
            "add up to", "the initial value of variable", "complex numbers are pairs",
            "must have one element", "does not fit", "divided by", "are more than extent"),
    # Both compute.
    Cause("differs", "", "the plugin computes f64 in f32", document=r'"f64"'),
    Cause("differs", "", "the plugin does not compute with types of 4 and 8 bits as they are", document=PACKED),
    Cause("differs", "", "NaN, infinities and overflows go other ways through the plugin's kernels", extreme=True),
    Cause("differs", r"expected \((\d+, )*0[,)]", "the plugin gives nothing where its shapes contradict each other"),
    Cause("differs", EDGE, "numbers that an integer type does not hold, and divisions by 0, become anything"),
    Cause("differs", "", "the plugin computes i64 and unsigned integers in i32", document=op(r"Bitwise\w+")),
    Cause("differs", r"(nan|inf)\b", "results beyond f32, or at the end of a domain, where one rounding decides"),
    Cause("differs", r"differ; |the reference too",
          "OpenVINO cuts off what it computes of integers before it runs, and rounds it later",
          document=r'^(?=(?s:.*)[iu](8|16|32|64)")(?s:.*)'
          + op("Log", "Tan", "Sin", "Cos", "Sqrt", "Exp", "Gelu", "Erf")),
    Cause("differs", r"largest error [\d.]+e-0[5-9]", "sums of products in another order",
          document=op(r"\w*MatMul", r"\w*Convolution\w*", r"(LSTM|GRU|RNN)\w+", r"Reduce\w+")),
    Cause("differs", r"output \d+: \d\d? of", "a quotient that is rounded to a code can fall to either side",
          document=op("FakeQuantize")),
    Cause("differs", "", "OpenVINO keeps numbers of attributes in 32 bits",
          document=r'="[^"]*\b-?(2147483648|4294967296|9223372036854775807|9223372036854775808)\b'),
    Cause("differs", r"shape \(\d+, 3\), expected", "the plugin pads and cuts what is selected by static counts, and "
          "takes thresholds below 0 for others", document=op("NonMaxSuppression")),
    Cause("differs", "", "labels that are the blank", document=op("CTCLoss")),
    Cause("differs", "instead of 0", "the plugin's Unique gives zeros where an output is not used",
          document=op("Unique")),
    Cause("differs", "instead of 0", "elements that equal the least of their type have index 0",
          document=op("MaxPool")),
    Cause("differs", "", "the plugin's ErfInv loses digits near 1", document=op("ErfInv")),
    Cause("differs", "", "the plugin does not round to f16 between operations, of which the last finds more in little",
          document='"f16"(?s:.*)' + op("GatherTree", "Tan")),
    Cause("differs", "", "roots of numbers near or below 0, to which no eps is added", document=r'eps="(-|0(\.0)?")'),
    Cause("differs", "", "the plugin takes parameters of 0 for absent ones", document=op("Selu", "HardSigmoid")),
    Cause("differs", "", "the page's default for axis is 1, the class's is 0",
          document=r'type="Softmax" version="opset1"[^>]*>\s*(<(?!data)|<data (?![^>]*axis))'),
    Cause("differs", r"instead of (0\.0|nan|-?[\d.]+e[-+]?\d\d)", "regions of images that are not there",
          document=op(r"(Deformable)?PSROIPooling", r"ROI\w+")),
    Cause("differs", "", "constants that are computed in f16 keep more digits while OpenVINO folds them",
          document=r'destination_type="f16"(?s:.*)' + op(r"(Group)?Convolution(BackpropData)?", "MatMul")),
    Cause("differs", "", "the order of equal elements",
          document=op("TopK", "ExperimentalDetectronTopKROIs", "MatrixNms", "Proposal")),
    Cause("differs", "", "regions that do not fill the channels", document=op("RegionYolo")),
    Cause("differs", "", "probabilities below 0", document=op("Multinomial")),
    Cause("differs", "", "numbers that are nearly 0, and are asked whether they are", document=op(r"Logical\w+")),
    Cause("differs", r"instead of 0\.0", "lengths beyond the steps there are", document=op(r"(LSTM|GRU|RNN)Sequence")),
)
