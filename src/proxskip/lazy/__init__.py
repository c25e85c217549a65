"""What is loaded when it is first needed: public names, compiled kernels, and kernels as files of machine code."""
