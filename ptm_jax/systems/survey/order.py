"""The order of the catalogue: {module: names of the systems that its `systems()` yields}."""

ORDER = {
    "transformers.bert_gpt": """
        bert_base bert_large bert_base_cased bert_large_cased
        bert_base_chinese bert_L2_H128 bert_L2_H256 bert_L2_H512 bert_L2_H768 bert_L4_H128
        bert_L4_H256 bert_L4_H512 bert_L4_H768 bert_L6_H128 bert_L6_H256 bert_L6_H512 bert_L6_H768
        bert_L8_H128 bert_L8_H256 bert_L8_H512 bert_L8_H768 bert_L10_H128 bert_L10_H256
        bert_L10_H512 bert_L10_H768 bert_L12_H128 bert_L12_H256 bert_L12_H512 bert_L12_H768
        bert_tiny bert_mini roberta_base roberta_large roberta_mini gpt gpt2 gpt2_medium gpt2_large
        gpt2_xl gpt_mini
    """,
    "transformers.albert": """
        albert_base albert_base_v2 albert_large albert_large_v2 albert_xlarge albert_xlarge_v2
        albert_xxlarge albert_xxlarge_v2 albert_base_shared_attention albert_base_shared_ffn
        albert_base_not_shared albert_mini
    """,
    "transformers.cloze": """
        cloze_base cloze_large cloze_cnn_base cloze_cnn_large cloze_mini cloze_cnn_mini
    """,
    "transformers.ctrl": "ctrl ctrl_mini",
    "transformers.dual_train": "dual_train_48 dual_train_96 dual_train_192 dual_train_mini",
    "transformers.mobilebert": "ib_bert_large mobilebert ib_bert_mini mobilebert_mini",
    "transformers.electra": """
        electra_small electra_small_plus electra_base electra_large electra_mini
    """,
    "transformers.modern.modernbert": "modernbert_base modernbert_large modernbert_mini",
    "transformers.modern.ettin": """
        ettin_17m ettin_32m ettin_68m ettin_150m ettin_400m ettin_1b mmbert_small mmbert_base
    """,
    "transformers.modern.eurobert": "eurobert_210m eurobert_610m eurobert_2_1b",
    "transformers.modern.nomicbert": "nomicbert_base",
    "transformers.modern.neobert": "neobert",
    "transformers.modern.esm2": "esm2_t6_8m esm2_t12_35m esm2_t30_150m esm2_t33_650m",
    "transformers.modern.roformer": "roformer_base",
    "transformers.deberta": """
        deberta_base deberta_large deberta_v2_xlarge deberta_v3_small deberta_v3_base
        deberta_v3_large deberta_v3_mini
    """,
    "sequence_to_sequence.bart": """
        transformer_base transformer_big bart_base bart_large bart_mini mass_enfr mass_mini
        pegasus_base pegasus_large pegasus_mini
    """,
    "sequence_to_sequence.hibert": "hibert_s hibert_m hibert_mini",
    "transformers.bert_variants": """
        spanbert_base structbert_base infoword_base spanbert_large structbert_large infoword_large
        bert_large_wwm bert_large_cased_wwm bert_base_chinese_wwm bert_base_chinese_wwm_ext
        roberta_base_chinese_wwm roberta_large_chinese_wwm spanbert_mini structbert_mini
        infoword_mini bert_wwm_mini roberta_chinese_wwm_mini
    """,
    "transformers.chinese.ernie": "ernie_base ernie_base_published ernie_base_dialogue ernie_mini",
    "transformers.chinese.ernie2": "ernie_2_base ernie_2_large ernie_2_mini",
    "transformers.chinese.nezha": "nezha_base nezha_large nezha_mini",
    "transformers.chinese.zen": "zen_base zen_base_published zen_mini",
    "transformers.many_languages": """
        bert_base_multilingual_cased bert_multilingual_mini xlm_15 xlm_tlm_15 xlm_17 xlm_100
        xlm_clm_enfr xlm_mini xlm_clm_mini xlm_r_base xlm_r_large xlm_r_xl xlm_r_xxl xlm_r_mini
    """,
    "cross_lingual.cross_tasks": "unicoder xnlg_encoder xnlg unicoder_mini xnlg_mini",
    "cross_lingual.xmod": "xmod_base xmod_large_prenorm xmod_mini",
    "sequence_to_sequence.mbart": "mbart25 mbart_mini",
    "transformers.megatron": """
        megatron_gpt2_1200m megatron_gpt2_2500m megatron_gpt2_4200m megatron_gpt2_8300m
        megatron_bert_336m megatron_bert_1300m megatron_bert_3900m megatron_bert_mini
        megatron_gpt2_mini turing_nlg
    """,
    "recurrent.lstm": """
        lstm_medium lstm_large lstm_mini charlstm_small charlstm_large charlstm_mini awd_lstm
        awd_lstm_mini qrnn qrnn_mini
    """,
    "recurrent.ulmfit": """
        lm_lstm sa_lstm ulmfit ulmfit_backward multifit lm_lstm_mini sa_lstm_mini ulmfit_mini
        ulmfit_backward_mini multifit_mini
    """,
    "recurrent.elmo": "elmo elmo_mini",
    "recurrent.flair": "flair flair_mini",
    "recurrent.ld_net": "ld_net ld_net_mini",
    "recurrent.skip_thought": "skip_thought skip_thought_bi skip_thought_mini skip_thought_bi_mini",
    "recurrent.context2vec": "context2vec context2vec_mini",
    "sequence_to_sequence.t5": """
        t5_small t5_base t5_large t5_3b t5_11b t5_1_1_small t5_1_1_base t5_1_1_large t5_1_1_xl
        t5_1_1_xxl t5_mini t5_1_1_mini
    """,
    "transformers.unilm": "unilm_base unilm_large unilmv2_base unilm_mini unilmv2_mini",
    "survey.table1": "bilm_mini contrast_mini ranking_mini noisywords_mini noisypairs_mini",
    "transformers.universal_transformer": "universal_transformer universal_lm universal_mini",
    "word_vectors.fasttext": """
        fasttext fasttext_cbow fasttext_mini fasttext_cbow_mini fasttext_supervised
        fasttext_supervised_mini
    """,
    "word_vectors.word2vec": """
        skipgram skipgram_hs cbow cbow_hs vlbl ivlbl skipgram_mini skipgram_hs_mini cbow_mini
        cbow_hs_mini vlbl_mini ivlbl_mini
    """,
    "word_vectors.glove": "glove glove_mini",
    "structured.dbn": "greedy_rbm greedy_autoencoder greedy_rbm_mini greedy_autoencoder_mini",
    "word_vectors.nnlm": "nnlm senna nnlm_mini senna_mini",
    "word_vectors.paragraph_vectors": """
        pv_dm pv_dm_concat pv_dbow pv_dbow_words paragraph_vectors pv_dm_mini pv_dm_concat_mini
        pv_dbow_mini pv_dbow_words_mini paragraph_vectors_mini
    """,
    "word_vectors.biskip": "biskip singla_joint biskip_mini singla_joint_mini",
    "sequence_to_sequence.rnnsearch": """
        rnnsearch_50 luong_location luong_general luong_local_m luong_local_p cove lm_seq2seq
        lm_seq2seq_lm rnnsearch_mini luong_mini lm_seq2seq_mini lm_seq2seq_lm_mini
    """,
    "recurrent.liu_shared": """
        liu_uniform liu_coupled liu_shared liu_lm liu_uniform_mini liu_coupled_mini liu_shared_mini
        liu_lm_mini
    """,
    "structured.textcnn": """
        textcnn textcnn_static textcnn_multichannel dcnn convs2s_enro convs2s_ende convs2s_enfr
        textcnn_mini dcnn_mini convs2s_mini
    """,
    "structured.tree_lstm": """
        recursive_nn rntn tree_lstm tree_lstm_binary tree_lstm_replaced gcn syntactic_gcn s_lstm
        star_transformer recursive_nn_mini rntn_mini tree_lstm_binary_mini tree_lstm_mini
        tree_lstm_replaced_mini gcn_mini syntactic_gcn_mini s_lstm_mini star_transformer_mini
    """,
    "word_vectors.joint_graphs": """
        wang_joint zhong_joint wang_joint_mini zhong_joint_mini dkrl gated_descriptions dkrl_mini
        gated_descriptions_mini
    """,
    "knowledge.kbert": "kbert_base kbert_mini",
    "knowledge.kepler": """
        libert_base kepler_base kgbert_base kgbert_relations_base libert_mini kepler_mini
        kgbert_mini kgbert_relations_mini
    """,
    "knowledge.ernie_thu": "ernie_thu wklm_base ernie_thu_mini wklm_mini",
    "knowledge.kglm": "kglm kglm_mini",
    "knowledge.luke": "luke_base luke_large luke_mini",
    "knowledge.lrlm": "lrlm lrlm_mini",
    "knowledge.knowbert": "knowbert_wiki knowbert_wordnet knowbert_wiki_wordnet knowbert_mini",
    "knowledge.bert_mk": "bert_mk bert_mk_mini",
    "knowledge.commonsense_gpt2": "commonsense_gpt2_triples commonsense_gpt2 commonsense_gpt2_mini",
    "knowledge.kt_net": "kt_net_first kt_net kt_net_mini",
    "knowledge.sensebert": """
        sentilr_base sensebert_base sensebert_large sentilr_mini sensebert_mini
    """,
    "knowledge.transe": """
        transe transh distmult conve transe_mini transh_mini
    """,
    "transformers.transformer_xl": """
        xlnet_base xlnet_large xlnet_mini transformer_xl_wt103 transformer_xl_wt103_large
        transformer_xl_enwik8 transformer_xl_enwik8_large transformer_xl_text8
        transformer_xl_text8_large transformer_xl_lm1b transformer_xl_lm1b_large
        transformer_xl_words_mini transformer_xl_mini
    """,
    "later_objectives.gpt_bert": "gpt_bert_small gpt_bert_base gpt_bert_mini",
    "later_objectives.diffusion": "mdlm_lm1b llada_8b mdlm_mini",
    "later_objectives.unlabelled_sentences": """
        simcse_bert_base tsdae_bert_base simcse_mini tsdae_mini
    """,
    "languages.european": """
        camembert_base camembert_large flaubert_small_cased flaubert_base_uncased
        flaubert_base_cased flaubert_large_cased finbert_cased finbert_uncased bertje bertje_2021
        robbert_v1 robbert_v2 rubert slavic_bert camembert_mini flaubert_mini flaubert_large_mini
        finbert_mini bertje_mini robbert_mini rubert_mini slavic_bert_mini
    """,
    "languages.asian": """
        arabert_v01 arabert_v02_large bert_japanese bert_japanese_wwm bert_japanese_char
        bert_japanese_char_wwm bert_japanese_pieces ulmfit_japanese elmo_japanese arabert_mini
        bert_japanese_mini bert_japanese_char_mini bert_japanese_pieces_mini ulmfit_japanese_mini
        elmo_japanese_mini
    """,
}
