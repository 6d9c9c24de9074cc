"""Fine-tunes a language model with LoRA: a script like any other, of TRL's and PEFT's parts.

    torchrun -m kfp_pytorch.training.fine_tune [--model PATH] [--data PATH] …

`arguments` has its arguments, `data` reads the examples, `made_up` makes a model and examples where
none are given, and `__main__` trains and exports. What it reports, keeps and exports goes through
`training.script`.
"""
