"""What every operation is made of: the class `Op`, views, shapes, element types, launches."""
