"""The front: a program that has the port, the callers' messages and the functions, while decisions are made here."""
