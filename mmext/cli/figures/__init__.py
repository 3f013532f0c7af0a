"""The figures of tools/analysis_tools: one module a tool, each with ``run(args)``."""
