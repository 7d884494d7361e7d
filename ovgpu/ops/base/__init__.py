"""Building blocks that all operations share: the class `Op`, views, shapes, element types, launches."""
