"""A network as an fx graph: exported, its layers given to kernels, lowered to operations that torch compiles."""
