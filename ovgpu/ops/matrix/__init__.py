"""Matrix ops: MatMul, GroupedMatMul, Einsum, Inverse."""
