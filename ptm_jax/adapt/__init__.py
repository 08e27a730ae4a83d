"""Adaptations of a pre-trained model to a task (survey section 5).

Each is a small value; the model itself is unchanged.

    rates           learning rates by layer
    freezing        parameters that are never trained: feature extraction, BitFit
    unfreezing      schedules: gradual unfreezing, chain-thaw, sequential unfreezing
    representation  the layers that the heads read
    adapters, pals, lora, prefix, side
                    small networks added to a frozen one
    adversarial     loss at word vectors moved along the gradient (AdversarialTraining)
    agreement       equal predictions of two passes with different dropout (RDrop)
    auxiliary       a language model's loss in addition to the task's (AuxiliaryLanguage)
    averaging       the mean of the last parameters, as model and as teacher

`catalogue` has their names on the command line. `core.system.Adaptation` lists the methods of an
adaptation.
"""

from ptm_jax.core.public import public

KINDS = True  # the public dataclasses here may stand in a record (`core.spec.classes`)
__getattr__, __dir__ = public(__name__, __path__[0])
