# Overlay for a SAFFU: a cold start from random weights, with the same embeddings by the bit-cipher.
#   python train.py config/saffu.py config/ablate/saffu_cold.py --out_dir=out/saffu_cold
# With config/paper/saffu.py add --saffu_tuning=0: only an explicit start has tuning passes.
# The paper's cold models draw and train their embeddings too: --saffu_embeddings=random
# --saffu_train_embeddings=True.
saffu_init = "random"
