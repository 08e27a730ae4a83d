"""Ways of adapting a pre-trained model to a task (survey section 5): each a small value around an untouched model.

    rates           how fast a parameter learns by its layer
    freezing        what is never trained: feature extraction, BitFit
    unfreezing      what is trained when: gradual unfreezing, chain-thaw, sequential unfreezing
    representation  which layers the heads read
    adapters, pals, lora, prefix, side   small networks in or beside a frozen one
    adversarial     word vectors moved where the loss grows                 AdversarialTraining
    agreement       two passes with other dropout that shall say the same   RDrop
    auxiliary       a language model's loss beside the task's               AuxiliaryLanguage
    averaging       the mean of the last parameters, as model and as teacher

`catalogue` has their names on the command line. What an adaptation may define is in `core.system.Adaptation`.
"""
