"""From PrimFuncs under Relax to what the virtual machine's code generator takes."""
