"""Adaptations of a pre-trained model to a task (survey section 5). Each is a small value beside an
unchanged model.

    rates           learning rates by layer
    freezing        parameters that are never trained: feature extraction, BitFit
    unfreezing      schedules: gradual unfreezing, chain-thaw, sequential unfreezing
    representation  the layers that the heads read
    adapters, pals, lora, prefix, side   small networks in or beside a frozen one
    adversarial     loss at word vectors moved along the gradient           AdversarialTraining
    agreement       two passes with different dropout that predict the same RDrop
    auxiliary       a language model's loss beside the task's               AuxiliaryLanguage
    averaging       the mean of the last parameters, as model and as teacher

`catalogue` has their names on the command line. `core.system.Adaptation` lists the methods of an
adaptation.
"""

from ptm_jax.core.public import public

KINDS = True  # the public dataclasses here may stand in a record (`core.spec.classes`)
__getattr__, __dir__ = public(__name__, __path__[0])
